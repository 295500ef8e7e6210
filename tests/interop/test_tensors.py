"""Safetensors files: whatever the library writes is read, whatever we write it reads, and nothing else is believed."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from qkv.errors import CheckpointError, InputError
from qkv.interop.tensors import (
    DTYPES,
    INDEX,
    WEIGHTS,
    read_tensors,
    stored_in,
    stored_in_folder,
    write_tensors,
)


def every_kind() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    numbers = {name: (torch.randn(3, 5) * 3).to(dtype) for name, dtype in DTYPES.items()}
    return numbers | {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "odd": torch.randn(3).half()}


def test_what_the_library_writes_is_read_bit_for_bit(tmp_path: Path) -> None:
    save_file(every_kind(), tmp_path / "x.safetensors", metadata={"format": "pt", "more": "words"})
    read = read_tensors(tmp_path / "x.safetensors")
    assert read.keys() == every_kind().keys()
    for name, tensor in every_kind().items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_what_is_written_the_library_reads_bit_for_bit(tmp_path: Path) -> None:
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
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert all((stored.start - 8 - header) % DTYPES[stored.dtype].itemsize == 0 for stored in stored_in(path).values())


def test_a_file_of_no_tensors_is_one(tmp_path: Path) -> None:
    write_tensors({}, tmp_path / "x.safetensors")
    assert read_tensors(tmp_path / "x.safetensors") == {} == load_file(tmp_path / "x.safetensors")


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(InputError, match=r"x: cannot be written: Is a directory"):
        write_tensors({}, tmp_path / "x")


def raw(path: Path, header: Any, data: bytes = b"") -> Path:
    """A file with any header, and any bytes after it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(shape: Any = (2,), offsets: Any = (0, 8), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_the_smallest_file_by_hand(tmp_path: Path) -> None:
    data = bytes.fromhex("0000803f 00000040".replace(" ", ""))
    assert torch.equal(read_tensors(raw(tmp_path / "x", {"a": entry()}, data))["a"], torch.tensor([1.0, 2.0]))


ALTERED = "cut short or altered: "
NOT_JSON = ALTERED + "not valid JSON: "


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ([], b"", "must hold a JSON object"),
        (b"", b"", NOT_JSON),
        (b'{"a": ', b"", NOT_JSON),
        (b"\xff\xfe", b"", ALTERED + "its header is not UTF-8"),
        (b"[" * 100_000, b"", NOT_JSON),
        (b'{"a": ' + b"[" * 50 + b"]" * 50 + b"}", b"", "holds values inside values, more than 32 deep"),
        (b'{"a": {}, "a": {}}', b"", NOT_JSON + "the key 'a' is there twice"),
        (b'{"a": {"dtype": "F32", "dtype": "F64"}}', b"", NOT_JSON + "the key 'dtype' is there twice"),
        ({"a": 1}, b"", ALTERED + "a is not described by dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8), ALTERED + "a is not described by"),
        ({"a": entry() | {"strides": [1]}}, bytes(8), ALTERED + "a is not described by"),
        ({"a": entry(offsets=[0, 4, 8])}, bytes(8), ALTERED + "a is not described by"),
        ({"a": entry(shape="22")}, bytes(8), ALTERED + "a is not described by"),
        ({"a": entry(dtype=7)}, bytes(8), ALTERED + "a is not described by"),
        ({"a": entry(dtype="C64")}, bytes(8), "a is stored as C64, not as F16, BF16, F32, F64, BOOL"),
        ({"a": entry(shape=[-2])}, bytes(8), ALTERED + "a has a shape that cannot be"),
        ({"a": entry(shape=[2.0])}, bytes(8), ALTERED + "a has a shape that cannot be"),
        ({"a": entry(shape=[2, True])}, bytes(8), ALTERED + "a has a shape that cannot be"),
        ({"a": entry(shape=[2] + [1] * 99)}, bytes(8), ALTERED + "a has a shape that cannot be"),
        ({"a": entry(shape=[10**30, 0], offsets=[0, 0])}, b"", ALTERED + "a has a shape that cannot be"),
        ({"a": entry(shape=[10**12])}, bytes(8), ALTERED + "a has 8 bytes, not what F32 [1000000000000] takes"),
        ({"a": entry(shape=[2**40] * 9)}, bytes(8), ALTERED + "a has 8 bytes"),
        ({"a": entry(offsets=[-8, 0])}, bytes(8), ALTERED + "a has data_offsets that cannot be"),
        ({"a": entry(offsets=["0", 8])}, bytes(8), ALTERED + "a has data_offsets that cannot be"),
        ({"a": entry(offsets=[8, 0])}, bytes(8), ALTERED + "a has -8 bytes"),
        ({"a": entry(offsets=[8, 16])}, bytes(16), ALTERED + "a comes after bytes that are no tensor's"),
        ({"a": entry(), "b": entry()}, bytes(8), ALTERED + "b overlaps the tensor before it"),
        ({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12), ALTERED + "b overlaps the tensor before it"),
        ({"a": entry(), "b": entry([0], [4, 4])}, bytes(8), ALTERED + "b overlaps the tensor before it"),
        ({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20), ALTERED + "b comes after bytes that are no tensor's"),
        ({"a": entry()}, bytes(7), ALTERED + "it has "),
        ({"a": entry()}, bytes(9), ALTERED + "it has "),
        ({"a": entry([2**38], [0, 2**40])}, bytes(8), ALTERED + "it has "),
        ({"a\nb\u202e": 1}, b"", ALTERED + r"a\nb\u202e is not described by"),
        ({"a" * 10_000: 1}, b"", ALTERED + "a" * 200 + "... is not described by"),
    ],
)
def test_a_header_that_the_file_does_not_bear_out_is_refused(
    tmp_path: Path, header: Any, data: bytes, words: str
) -> None:
    path = raw(tmp_path / "x", header, data)
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=re.escape(f"{path}: {words}")) as caught:
        stored_in(path)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 1


def test_a_file_may_be_cut_at_any_byte_and_is_found_out(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3), "b": torch.ones(2).half()}, tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    for length in range(len(data)):
        (tmp_path / "x").write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="x: cut short or altered"):
            stored_in(tmp_path / "x")


def test_a_header_as_long_as_can_be_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(CheckpointError, match="it ends inside its header"):
        stored_in(tmp_path / "x")
    with (tmp_path / "x").open("wb") as file:
        file.write((2**30).to_bytes(8, "little"))
        file.truncate(2**31)  # a hole, which takes no disk
    with pytest.raises(CheckpointError, match="its header is larger than 16 MiB"):
        stored_in(tmp_path / "x")


def test_many_keys_of_which_the_last_is_there_twice_are_no_work(tmp_path: Path) -> None:
    keys = ", ".join(f'"{number}": 0' for number in range(200_000))
    began = time.monotonic()
    with pytest.raises(CheckpointError, match="the key '0' is there twice"):
        stored_in(raw(tmp_path / "x", f'{{{keys}, "0": 0}}'.encode()))
    assert time.monotonic() - began < 2


def test_a_file_that_shrinks_after_its_header_was_read_is_found_out(tmp_path: Path) -> None:
    save_file({"a": torch.ones(100)}, tmp_path / "x")
    stored = stored_in(tmp_path / "x")["a"]
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cut short or altered: it ends too early"):
        stored.read()
    (tmp_path / "x").unlink()
    with pytest.raises(CheckpointError, match="no such file"):
        stored.read()


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_a_weight_is_a_number_also_in_the_precision_it_is_copied_to(tmp_path: Path, number: float) -> None:
    save_file({"a": torch.tensor([1.0, number]), "b": torch.tensor([1e6])}, tmp_path / "x")
    stored = stored_in(tmp_path / "x")
    with pytest.raises(CheckpointError, match="x: a holds values that are not finite"):
        stored["a"].copy_into(torch.empty(2))
    stored["b"].copy_into(torch.empty(1, dtype=torch.bfloat16))
    with pytest.raises(CheckpointError, match="x: b holds values that are too large for float16"):
        stored["b"].copy_into(torch.empty(1, dtype=torch.float16))


def sharded(folder: Path) -> dict[str, torch.Tensor]:
    """Two files and their index."""
    one, two = {"a": torch.ones(2), "b": torch.zeros(3)}, {"c": torch.full((2, 2), 7.0)}
    save_file(one, folder / "model-00001-of-00002.safetensors")
    save_file(two, folder / "model-00002-of-00002.safetensors")
    places = dict.fromkeys(one, "model-00001-of-00002.safetensors")
    places |= dict.fromkeys(two, "model-00002-of-00002.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 36}, "weight_map": places}))
    return one | two


def test_several_files_with_an_index_are_one(tmp_path: Path) -> None:
    tensors = sharded(tmp_path)
    stored = stored_in_folder(tmp_path)
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[name].read(), tensors[name]) for name in tensors)


def test_one_file_counts_more_than_an_index(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file({"z": torch.ones(1)}, tmp_path / WEIGHTS)
    assert stored_in_folder(tmp_path).keys() == {"z"}


FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (None, f"{INDEX}: weight_map must be a table"),
        ([], f"{INDEX}: weight_map must be a table"),
        ({}, f"{INDEX}: weight_map must be a table"),
        ({"a": f"../{FIRST}"}, f"{INDEX}: '../{FIRST}' is not the name of a safetensors file beside the index"),
        ({"a": "/etc/passwd"}, f"{INDEX}: '/etc/passwd' is not the name"),
        ({"a": f"x/{FIRST}"}, f"{INDEX}: 'x/{FIRST}' is not the name"),
        ({"a": ".."}, f"{INDEX}: '..' is not the name"),
        ({"a": ""}, f"{INDEX}: '' is not the name"),
        ({"a": "model.bin"}, f"{INDEX}: 'model.bin' is not the name"),
        ({"a": 3}, f"{INDEX}: 3 is not the name"),
        ({"a": ["x"]}, f"{INDEX}: ['x'] is not the name"),
        ({"a": "a\x00.safetensors"}, f"{INDEX}: 'a\\x00.safetensors' is not the name"),
        ({"a": "none.safetensors"}, "none.safetensors: no such file"),
        ({"a": FIRST}, f"{FIRST}: holds b, which {INDEX} does not say"),
        ({"a": FIRST, "b": SECOND, "c": SECOND}, f"{FIRST}: holds b, which {INDEX} does not say"),
        ({"a": FIRST, "b": FIRST, "c": SECOND, "d": SECOND}, f"{SECOND}: d is missing, though {INDEX} says"),
    ],
)
def test_an_index_that_is_wrong_about_its_files_is_refused(tmp_path: Path, places: Any, words: str) -> None:
    sharded(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / words))):
        stored_in_folder(tmp_path)


def test_a_tensor_in_two_files_is_found(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file({"c": torch.ones(1), "a": torch.ones(2)}, tmp_path / SECOND)
    with pytest.raises(CheckpointError, match=f"{SECOND}: a is in {FIRST} too"):
        stored_in_folder(tmp_path)
