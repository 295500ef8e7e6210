"""Edits of safetensors headers: types, shapes, offsets, names and lengths."""

import json
import struct
from collections.abc import Callable
from typing import Any

from tests.robustness.mutators.content import flip_bits
from tests.robustness.mutators.registry import Target, mutator

FILES = ("*.safetensors",)
Header = dict[str, Any]


def _edit(target: Target, change: Callable[[Header, str, bytes], tuple[Any, str]]) -> str:
    """Rewrite the file with a header that `change` has altered for one tensor of it."""
    data = target.path.read_bytes()
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        name = target.random.choice([name for name in header if name != "__metadata__"])
    except (ValueError, IndexError):
        return flip_bits(target)
    written, done = change(header, name, data[end:])
    text = (written if isinstance(written, str) else json.dumps(written)).encode()
    target.path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    return f"{done} of {name}"


@mutator("tensors", *FILES)
def tensor_type(target: Target) -> str:
    def change(header: Header, name: str, data: bytes) -> tuple[Any, str]:
        types = ["F16", "BF16", "F64", "I64", "U8", "BOOL", "C64", "F8_E4M3", "F4", "f32", "", None, 3, []]
        header[name]["dtype"] = target.random.choice(types)
        return header, f"dtype {header[name]['dtype']!r}"

    return _edit(target, change)


@mutator("tensors", *FILES)
def tensor_shape(target: Target) -> str:
    def change(header: Header, name: str, data: bytes) -> tuple[Any, str]:
        shape = header[name]["shape"]
        wrong = [
            [*shape, 1],
            shape[:-1],
            shape[::-1],
            [0],
            [10**12],
            [-1],
            [2**62, 4],
            [2**64],
            [1.5],
            ["a"],
            None,
            [[1]],
        ]
        header[name]["shape"] = target.random.choice(wrong)
        return header, f"shape {header[name]['shape']}"

    return _edit(target, change)


@mutator("tensors", *FILES)
def tensor_offsets(target: Target) -> str:
    def change(header: Header, name: str, data: bytes) -> tuple[Any, str]:
        start, end = header[name]["data_offsets"]
        wrong = [[start + 4, end + 4], [start, end + 10**12], [end, start], [0, end - start], [start], None, [-4, end]]
        wrong += [[len(data), len(data) + end - start], [start, 2**64], [str(start), end], [start, float(end)]]
        header[name]["data_offsets"] = target.random.choice(wrong)
        return header, f"offsets {header[name]['data_offsets']}"

    return _edit(target, change)


@mutator("tensors", *FILES)
def tensor_name(target: Target) -> str:
    def change(header: Header, name: str, data: bytes) -> tuple[Any, str]:
        new = target.random.choice([f"module.{name}", "", "a\nb", "../x", "\x1b[31m", "x" * 10_000, name.upper()])
        return {new if key == name else key: value for key, value in header.items()}, f"name {new[:20]!r} instead"

    return _edit(target, change)


@mutator("tensors", *FILES)
def missing_tensor(target: Target) -> str:
    def change(header: Header, name: str, data: bytes) -> tuple[Any, str]:
        return {key: value for key, value in header.items() if key != name}, "entry removed"

    return _edit(target, change)


@mutator("tensors", *FILES)
def many_tensors(target: Target) -> str:
    def change(header: Header, name: str, data: bytes) -> tuple[Any, str]:
        empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        return header | {f"extra.{number}": empty for number in range(100_000)}, "100,000 empty tensors beside that"

    return _edit(target, change)


@mutator("tensors", *FILES)
def duplicate_tensor(target: Target) -> str:
    def change(header: Header, name: str, data: bytes) -> tuple[Any, str]:
        return f"{json.dumps(header)[:-1]}, {json.dumps(name)}: {json.dumps(header[name])}}}", "second entry"

    return _edit(target, change)


@mutator("tensors", *FILES)
def header_length(target: Target) -> str:
    data = target.path.read_bytes()
    length = target.random.choice([0, 1, len(data), len(data) - 8, 2**31, 2**62, 2**64 - 1])
    target.path.write_bytes(struct.pack("<Q", length) + data[8:])
    return f"header of {length} bytes"


@mutator("tensors", *FILES)
def not_a_number(target: Target) -> str:
    def change(header: Header, name: str, data: bytes) -> tuple[Any, str]:
        return header, "NaN in the values"

    done = _edit(target, change)
    data = bytearray(target.path.read_bytes())
    value = target.random.choice([float("nan"), float("inf"), -float("inf"), 3e38])
    for _ in range(target.random.choice([1, 50])):
        where = len(data) - 4 * target.random.randint(1, max(1, len(data) // 16))
        data[where : where + 4] = struct.pack("<f", value)
    target.path.write_bytes(data)
    return done.replace("NaN", str(value))
