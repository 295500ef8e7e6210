"""Safetensors files: compatible with the safetensors library, and corrupt files are errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from qkv.errors import CheckpointError
from qkv.hub.tensors import INDEX, WEIGHTS, read_header, read_headers, read_tensors, write_tensors
from tests.limits import cpu_limit

DTYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I64": torch.int64,
}


def every_kind() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    numbers = {name: (torch.randn(3, 5) * 3).to(dtype) for name, dtype in DTYPES.items()}
    return numbers | {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "odd": torch.randn(3).half()}


def test_files_of_the_library_are_read_bit_exactly(tmp_path: Path) -> None:
    save_file(every_kind(), tmp_path / "x.safetensors", metadata={"format": "pt", "more": "words"})
    read = read_tensors(tmp_path / "x.safetensors")
    assert read.keys() == every_kind().keys()
    for name, tensor in every_kind().items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_the_library_reads_written_files_bit_exactly(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    done: list[int] = []
    views = every_kind() | {"turned": every_kind()["F32"].t(), "row": every_kind()["F64"][1]}
    write_tensors(views, path, done.append)
    read = load_file(path)
    assert read.keys() == views.keys()
    assert all(read[name].dtype == views[name].dtype and torch.equal(read[name], views[name]) for name in views)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert done == sorted(done)
    assert done[-1] == sum(view.nbytes for view in views.values())


def test_an_empty_file(tmp_path: Path) -> None:
    write_tensors({}, tmp_path / "x.safetensors")
    assert read_tensors(tmp_path / "x.safetensors") == {} == load_file(tmp_path / "x.safetensors")


def raw(path: Path, header: Any, data: bytes = b"") -> Path:
    """Write a file with the given header and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(shape: Any = (2,), offsets: Any = (0, 8), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_handwritten_file(tmp_path: Path) -> None:
    data = bytes.fromhex("0000803f 00000040".replace(" ", ""))
    assert torch.equal(read_tensors(raw(tmp_path / "x", {"a": entry()}, data))["a"], torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ([], b""),
        (b"", b""),
        (b'{"a": ', b""),
        (b"\xff\xfe", b""),
        (b"[" * 100_000, b""),
        (b'{"a": ' + b"[" * 50 + b"]" * 50 + b"}", b""),
        (b'{"a": {}, "a": {}}', b""),
        (b'{"a": {"dtype": "F32", "dtype": "F64"}}', b""),
        ({"a": 1}, b""),
        ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
        ({"a": entry(offsets=[0, 4, 8])}, bytes(8)),
        ({"a": entry(shape="22")}, bytes(8)),
        ({"a": entry(dtype=7)}, bytes(8)),
        ({"a": entry(dtype="X64")}, bytes(8)),
        ({"a": entry(shape=[-2])}, bytes(8)),
        ({"a": entry(shape=[2.0])}, bytes(8)),
        ({"a": entry(shape=[2, True])}, bytes(8)),
        ({"a": entry(shape=[10**30, 0], offsets=[0, 0])}, b""),
        ({"a": entry(shape=[10**12])}, bytes(8)),
        ({"a": entry(shape=[2**40] * 9)}, bytes(8)),
        ({"a": entry(offsets=[-8, 0])}, bytes(8)),
        ({"a": entry(offsets=["0", 8])}, bytes(8)),
        ({"a": entry(offsets=[8, 0])}, bytes(8)),
        ({"a": entry(offsets=[8, 16])}, bytes(16)),
        ({"a": entry(), "b": entry()}, bytes(8)),
        ({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
        ({"a": entry(), "b": entry([0], [4, 4])}, bytes(8)),
        ({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)),
        ({"a": entry()}, bytes(7)),
        ({"a": entry()}, bytes(9)),
        ({"a": entry([2**38], [0, 2**40])}, bytes(8)),
        ({"a\nb\u202e": entry(offsets=[8, 16])}, bytes(16)),
        ({"a" * 10_000: entry(offsets=[8, 16])}, bytes(16)),
    ],
)
def test_an_inconsistent_header_is_an_error(tmp_path: Path, header: Any, data: bytes) -> None:
    path = raw(tmp_path / "x", header, data)
    with cpu_limit(30), pytest.raises(CheckpointError, match=re.escape(f"{path}: truncated or corrupt: ")) as caught:
        read_header(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_an_absurd_number_of_dimensions_is_a_short_error(tmp_path: Path) -> None:
    stored = read_header(raw(tmp_path / "x", {"a": entry([0] * 10**6, [0, 0])}))["a"]
    with pytest.raises(CheckpointError, match="shape") as caught:
        stored.check((0,))
    assert len(str(caught.value)) < 500


def test_truncation_at_any_byte_is_detected(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3), "b": torch.ones(2).half()}, tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    for length in range(len(data)):
        (tmp_path / "x").write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="x: truncated or corrupt"):
            read_header(tmp_path / "x")


def test_a_huge_header_length_allocates_no_memory(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(CheckpointError, match="header larger than 16 MiB"):
        read_header(tmp_path / "x")
    with (tmp_path / "x").open("wb") as file:
        file.write((2**30).to_bytes(8, "little"))
        file.truncate(2**31)  # a hole, which takes no disk
    with pytest.raises(CheckpointError, match="header larger than 16 MiB"):
        read_header(tmp_path / "x")


def test_many_keys_are_read_quickly(tmp_path: Path) -> None:
    keys = ", ".join(f'"{number}": 0' for number in range(200_000))
    with cpu_limit(30), pytest.raises(CheckpointError, match="truncated or corrupt"):
        read_header(raw(tmp_path / "x", f'{{{keys}, "0": 0}}'.encode()))


def test_truncation_after_reading_the_header_is_detected(tmp_path: Path) -> None:
    save_file({"a": torch.ones(100)}, tmp_path / "x")
    stored = read_header(tmp_path / "x")["a"]
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        stored.read()


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_weights_must_be_finite_in_the_target_dtype(tmp_path: Path, number: float) -> None:
    save_file({"a": torch.tensor([1.0, number]), "b": torch.tensor([1e6])}, tmp_path / "x")
    stored = read_header(tmp_path / "x")
    with pytest.raises(CheckpointError, match="x: a contains"):
        stored["a"].copy_into(torch.empty(2))
    stored["b"].copy_into(torch.empty(1, dtype=torch.bfloat16))
    with pytest.raises(CheckpointError, match=r"x: b contains .* float16"):
        stored["b"].copy_into(torch.empty(1, dtype=torch.float16))


def sharded(folder: Path) -> dict[str, torch.Tensor]:
    """Write two shards and their index."""
    first, second = {"a": torch.ones(2), "b": torch.zeros(3)}, {"c": torch.full((2, 2), 7.0)}
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file(second, folder / "model-00002-of-00002.safetensors")
    weight_map = dict.fromkeys(first, "model-00001-of-00002.safetensors")
    weight_map |= dict.fromkeys(second, "model-00002-of-00002.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 36}, "weight_map": weight_map}))
    return first | second


def test_shards_with_an_index(tmp_path: Path) -> None:
    tensors = sharded(tmp_path)
    stored = read_headers(tmp_path)
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[name].read(), tensors[name]) for name in tensors)


def test_a_single_file_takes_precedence_over_an_index(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file({"z": torch.ones(1)}, tmp_path / WEIGHTS)
    assert read_headers(tmp_path).keys() == {"z"}


FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        (None, f"{INDEX}: weight_map must map"),
        ([], f"{INDEX}: weight_map must map"),
        ({}, f"{INDEX}: weight_map must map"),
        ({"a": f"../{FIRST}"}, f"{INDEX}: '../{FIRST}' is not the name"),
        ({"a": "/etc/passwd"}, f"{INDEX}: '/etc/passwd' is not the name"),
        ({"a": f"x/{FIRST}"}, f"{INDEX}: 'x/{FIRST}' is not the name"),
        ({"a": ".."}, f"{INDEX}: '..' is not the name"),
        ({"a": ""}, f"{INDEX}: '' is not the name"),
        ({"a": "model.bin"}, f"{INDEX}: 'model.bin' is not the name"),
        ({"a": 3}, f"{INDEX}: 3 is not the name"),
        ({"a": ["x"]}, f"{INDEX}: ['x'] is not the name"),
        ({"a": "a\x00.safetensors"}, f"{INDEX}: 'a\\x00.safetensors' is not the name"),
        ({"a": "none.safetensors"}, "none.safetensors: no such file"),
        ({"a": FIRST}, f"{FIRST}: b is not listed"),
        ({"a": FIRST, "b": SECOND, "c": SECOND}, f"{FIRST}: b is not listed"),
        ({"a": FIRST, "b": FIRST, "c": SECOND, "d": SECOND}, f"{SECOND}: d is missing"),
    ],
)
def test_an_inconsistent_index_is_an_error(tmp_path: Path, weight_map: Any, words: str) -> None:
    sharded(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / words))):
        read_headers(tmp_path)


def test_a_tensor_in_two_shards_is_an_error(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file({"c": torch.ones(1), "a": torch.ones(2)}, tmp_path / SECOND)
    with pytest.raises(CheckpointError, match=f"{SECOND}: a is not listed"):
        read_headers(tmp_path)
