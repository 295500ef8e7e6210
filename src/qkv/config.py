"""Build frozen config dataclasses from plain data (TOML, JSON, `--set a.b=value`).

Errors name the offending key and the nearest valid one. Data can only set declared fields; it never selects code.
"""

import copy
import dataclasses
import difflib
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from qkv.errors import InputError
from qkv.runtime.files import read_regular

MAX_TOML_BYTES = 2**20  # bytes
MAX_INTEGER = 2**53  # largest integer range that float64 represents exactly

T = TypeVar("T")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; a missing or malformed file raises InputError."""
    try:
        return tomllib.loads(read_regular(path, MAX_TOML_BYTES).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:  # ValueError also for integers with thousands of digits
        raise InputError(f"{path}: not valid TOML: {error}") from None


def write_toml(data: Mapping[str, Any]) -> str:
    """Serialize nested plain data as TOML; None values are omitted, as TOML has no null."""
    return "\n".join(_toml_lines(data, ())) + "\n"


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table: its values first, then its subtables."""
    for key, value in table.items():
        if not isinstance(value, Mapping | None):
            yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from ("", f"[{'.'.join(map(_toml_key, (*path, key)))}]")
            yield from _toml_lines(value, (*path, key))


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    # Strings, integers and booleans are as in JSON, except that TOML requires DEL to be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def override(data: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Apply `a.b=value` assignments to a copy of nested data; a value is TOML or a bare word."""
    result = copy.deepcopy(data)
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        if not equals or not all(dotted.strip().split(".")):
            raise InputError(f"--set {shown(assignment)}: expected a.b=value")
        *parents, last = dotted.strip().split(".")
        table = result
        for parent in parents:
            table = table.setdefault(parent, {})
            if not isinstance(table, dict):
                raise InputError(f"--set {shown(assignment)}: {shown(parent)} is a value, not a table")
        table[last] = _parse_value(text.strip())
    return result


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base` recursively: tables key by key, other values are replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text  # a bare word needs no quotes inside shell quotes


def build(cls: type[T], data: Any, where: str, prefix: str = "") -> T:
    """Fill the dataclass `cls` from plain data, checking every key and type.

    `where` opens each error message; `prefix` precedes each key in it (e.g. "model.").
    """
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: {prefix.rstrip('.') or 'the top level'} must be a table of keys and values")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise InputError(f"{where}: unknown key {prefix}{shown(key)}{nearest(key, fields, prefix)}")
    hints = typing.get_type_hints(cls)
    values = {key: _convert(hints[key], value, where, f"{prefix}{key}") for key, value in data.items()}
    required = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    for name in required:
        if name not in values:
            raise InputError(f"{where}: missing key {prefix}{name}")
    try:
        return cls(**values)
    except InputError as error:  # a check of the dataclass itself, e.g. "dropout must be in [0, 1)"
        raise InputError(f"{where}: {_with_prefix(str(error), prefix, fields)}") from None


def _with_prefix(message: str, prefix: str, fields: Iterable[str]) -> str:
    """Prefix a message with its table: "model.dropout must ..." for a key, else "model: ..."."""
    first = re.split(r"\W", message, maxsplit=1)[0]
    return f"{prefix}{message}" if first in fields or not prefix else f"{prefix.rstrip('.')}: {message}"


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return " (did you mean ...?)" if a known name is close, else the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {prefix}{close[0]}?)"
    return f" (known: {', '.join(names)})"


def _convert(hint: Any, value: Any, where: str, key: str) -> Any:
    """Check and convert `value` to a field's type; integers are valid floats, lists are valid tuples."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where, prefix=f"{key}.")
    if origin is Literal:
        if value not in options:
            text = shown_value(value)
            hint = nearest(text.strip("'"), map(str, options))
            raise InputError(f"{where}: {key} = {text}{hint}")
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in options:
            return None
        members = [option for option in options if option is not type(None)]
        return _convert(members[0], value, where, key)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(options[0], item, where, key) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return _plain(value, where, key)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(_plain(value, where, key))
    expected = origin or hint
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise InputError(f"{where}: {key} must be {_type_name(expected)}, not {shown_value(value)}")
    return _plain(value, where, key)


def _plain(value: Any, where: str, key: str) -> Any:
    """Return `value` after checking its numbers: integers within +-MAX_INTEGER, floats not NaN."""
    if isinstance(value, Mapping):
        return {name: _plain(item, where, f"{key}.{shown(str(name))}") for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, where, key) for item in value]
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise InputError(f"{where}: {key} is out of range: must be between -2^53 and 2^53")
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"{where}: {key} must be a number, not nan")
    return value


def _type_name(kind: type) -> str:
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false", dict: "a table"}
    return names.get(kind, "a list")


def shown(text: str, longest: int = 200) -> str:
    """Return a text truncated and escaped for a one-line error message."""
    shortened = text if len(text) <= longest else f"{text[:longest]}..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in shortened)


def shown_value(value: Any, longest: int = 200) -> str:
    """Return the repr of a value, truncated and escaped for a one-line error message."""
    try:
        return shown(repr(value), longest)
    except ValueError:  # Python limits int-to-str conversion; TOML's hexadecimal integers can exceed it
        return "an integer with thousands of digits"


def require(condition: bool, message: str) -> None:
    """Raise InputError(message) unless `condition` holds; used by config dataclasses."""
    if not condition:
        raise InputError(message)


def require_known(config: Any, **known: Iterable[str]) -> None:
    """Raise unless each field of a config has one of its valid values."""
    for name, choices in known.items():
        value = getattr(config, name)
        require(value in choices, f"{name} {value!r} is not known{nearest(str(value), choices)}")


def require_meaning(config: Any, meant_for: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
    """Raise if a field is set that only applies when another field has certain values."""
    for field in dataclasses.fields(config):
        value, (other, allowed) = getattr(config, field.name), meant_for.get(field.name, (field.name, ()))
        require(
            other == field.name or value == field.default or getattr(config, other) in allowed,
            f"{field.name} = {value!r} does not apply with {other} = {getattr(config, other)!r}: "
            f"omit {field.name} or set {other} to {' or '.join(allowed)}",
        )


def require_names(label_names: Sequence[str], labels: int) -> None:
    """Raise unless all labels have names or none has."""
    require(len(label_names) in (0, labels), f"there are {len(label_names)} label_names for {labels} labels")
