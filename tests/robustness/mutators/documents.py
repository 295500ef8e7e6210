"""JSON and TOML documents with unexpected values, keys and lines."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from tests.robustness.mutators.content import flip_bits
from tests.robustness.mutators.registry import Target, mutator

JSON = ("*.json",)
TYPES: list[Any] = [None, True, False, [], {}, [8], {"a": 1}, "8", "", 1.5, [[[]]], [None], "os.system", "../../x"]
NUMBERS: list[Any] = [
    0, -1, 1, 3, 2**24, 2**31, 2**53 + 1, 2**63, -(2**63), 10**12, 10**400, 1e300, -0.0, float("nan"), float("inf"),
]  # fmt: skip
Slot = tuple[Any, Any]  # a container and a key or an index of it


def _slots(value: Any) -> Iterator[Slot]:
    """Every container of a document with every key or index of it."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _slots(value[key])


def _pick(document: Any, target: Target, wanted: type | tuple[type, ...] = object) -> Slot | None:
    """A random slot, half of the time of the top level, which a long vocabulary would hide otherwise."""
    top = [(document, key) for key in document] if isinstance(document, dict) else []
    slots = top if top and target.random.random() < 0.5 else list(islice(_slots(document), 20_000))
    slots = [(holder, key) for holder, key in slots if isinstance(holder[key], wanted)]
    return target.random.choice(slots) if slots else None


def _replace(target: Target, wanted: type | tuple[type, ...], values: list[Any]) -> str:
    try:
        document = json.loads(target.path.read_bytes())
    except ValueError:
        return flip_bits(target)
    slot = _pick(document, target, wanted)
    if slot is None:
        return flip_bits(target)
    holder, key = slot
    holder[key] = target.random.choice(values)
    target.path.write_text(json.dumps(document))
    return f"set {_short(key)} to {_short(holder[key])}"


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) < 60 else f"{text[:50]}... ({len(text)} characters)"


@mutator("json", *JSON)
def other_type(target: Target) -> str:
    return _replace(target, object, TYPES)


@mutator("json", *JSON)
def other_number(target: Target) -> str:
    return _replace(target, (int, float), NUMBERS)


@mutator("json", *JSON)
def any_number(target: Target) -> str:
    return _replace(target, object, NUMBERS)


@mutator("json", *JSON)
def long_string(target: Target) -> str:
    return _replace(target, (str, type(None)), ["x" * 1000, "é" * 100_000, "a b " * 50_000, "[" * 10_000])


@mutator("json", *JSON)
def control_string(target: Target) -> str:
    return _replace(target, (str, type(None)), ["\x1b[31mred", "a\nb", "\x00", "\u202e", "\ud800", "x\ry", "<script>"])


@mutator("json", *JSON)
def deep_nesting(target: Target) -> str:
    depth = target.random.choice([50, 900, 5_000, 100_000])
    opened, closed = target.random.choice([("[", "]"), ('{"a":', "}")])
    deep = opened * depth + "1" + closed * depth
    document = target.path.read_text(errors="replace").strip()
    target.path.write_text(f'{document[:-1]}, "model_type": {deep}}}' if document.endswith("}") else deep)
    return f"nest {depth} deep"


@mutator("json", *JSON)
def delete_key(target: Target) -> str:
    return _change_keys(target, lambda holder, key: holder.pop(key), "delete")


@mutator("json", *JSON)
def rename_key(target: Target) -> str:
    def rename(holder: dict[str, Any], key: str) -> None:
        names = [key.upper(), f"{key}\n", f" {key}", "__class__", "x" * 5000, "\x1b[31m"]
        holder[target.random.choice(names)] = holder.pop(key)

    return _change_keys(target, rename, "rename")


def _change_keys(target: Target, change: Any, verb: str) -> str:
    try:
        document = json.loads(target.path.read_bytes())
    except ValueError:
        return flip_bits(target)
    slots = [(holder, key) for holder, key in _slots(document) if isinstance(holder, dict)][:20_000]
    shallow = [(holder, key) for holder, key in slots if holder is document]
    if not slots:
        return flip_bits(target)
    holder, key = target.random.choice(target.random.choice([shallow or slots, slots]))
    change(holder, key)
    target.path.write_text(json.dumps(document))
    return f"{verb} the key {_short(key)}"


@mutator("json", *JSON)
def duplicate_key(target: Target) -> str:
    try:
        document = json.loads(target.path.read_bytes())
    except ValueError:
        return flip_bits(target)
    if not isinstance(document, dict) or not document:
        return flip_bits(target)
    key = target.random.choice(sorted(document))
    again = json.dumps(target.random.choice([document[key], 3, None]))
    target.path.write_text(f"{json.dumps(document)[:-1]}, {json.dumps(key)}: {again}}}")
    return f"give the key {_short(key)} twice"


@mutator("toml", "*.toml")
def set_a_value(target: Target) -> str:
    """Set a key to a value that is too large, too small, or of another type."""
    values = ["0", "-1", "1e400", "nan", "inf", "9" * 400, "0x" + "f" * 5000, '"x"', '"a\\u001bb"', "true", "[]", "{}"]
    values += ["1979-05-27", '"../../x"', "1000000000000000000", "9223372036854775808", '""', "[[1]]", "1", "0.5", "2"]
    return _change_line(target, lambda key: f"{key} = {target.random.choice(values)}")


@mutator("toml", "*.toml")
def rename_a_toml_key(target: Target) -> str:
    return _change_line(target, lambda key: f"{target.random.choice([key + 'x', 'x', key.upper()])} = 1")


@mutator("toml", "*.toml")
def delete_a_toml_key(target: Target) -> str:
    return _change_line(target, lambda key: "")


@mutator("toml", "*.toml")
def repeat_a_toml_key(target: Target) -> str:
    return _change_line(target, lambda key: f"{key} = 1\n{key} = 1")


@mutator("toml", "*.toml")
def cut_after_a_line(target: Target) -> str:
    lines = target.path.read_text().splitlines(keepends=True)
    number = target.random.randrange(len(lines))
    target.path.write_text("".join(lines[:number]))
    return f"cut after line {number}"


@mutator("toml", "*.toml")
def add_a_toml_table(target: Target) -> str:
    added = target.random.choice(
        ["[extra]\nx = 1\n", "[model.x]\ny = 1\n", "[[train]]\n", "[model]\n", "x = " + "[" * 5000]
    )
    target.path.write_text(f"{target.path.read_text()}\n{added}")
    return f"append {_short(added)}"


def _change_line(target: Target, change: Any) -> str:
    lines = target.path.read_text().splitlines()
    numbers = [number for number, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    number = target.random.choice(numbers)
    old, lines[number] = lines[number], change(lines[number].split(" = ")[0])
    target.path.write_text("\n".join(lines) + "\n")
    return f"line {number + 1}: {_short(old)} becomes {_short(lines[number])}"
