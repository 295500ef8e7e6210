"""Safetensors files, read as if someone had made them to do harm, and written one tensor at a time.

    8 bytes: the length n of the header | n bytes of JSON: {name: {dtype, shape, data_offsets}} | the tensors' bytes

What a header says of a tensor is believed only where the file bears it out: its bytes lie inside the file, are as many
as its shape and dtype ask for, and belong to no other tensor; and no byte belongs to none. So whoever has compared the
header with what is expected can read any tensor, and no file takes more memory than its own length.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from qkv.errors import CheckpointError
from qkv.interop.document import parse_object, read_object, shown
from qkv.runtime.document import open_bytes
from qkv.types import Tensor

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)  # a file's name, and no path
NUMBERS = ("F16", "BF16", "F32", "F64")  # what weights may be stored as
DTYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"
LENGTH = 8  # bytes, at the start of a file, that hold the length of its header
LARGEST_HEADER = 2**24  # bytes
MOST_DIMENSIONS, LARGEST_DIMENSION = 16, 2**48
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")

Progress = Callable[[int], None]  # told how many bytes are done


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, as the header tells of it."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # where its bytes begin in the file
    size: int  # how many they are

    def read(self) -> Tensor:
        if not self.size:
            return torch.empty(self.shape, dtype=DTYPES[self.dtype])
        data = bytearray(self.size)
        try:
            with open_bytes(self.path) as file:
                file.seek(self.start)
                if file.readinto(data) < self.size:
                    _altered(self.path, "it ends too early")
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error.strerror}") from None
        return torch.frombuffer(data, dtype=DTYPES[self.dtype]).view(self.shape)

    def read_finite(self, dtype: torch.dtype | None = None) -> Tensor:
        """The values of a weight, which must be numbers, also in the dtype that they are to have."""
        values = self.read()
        # The least and the greatest show whether all are finite, and NaN, if it is there, is both of them.
        ends = torch.stack(values.aminmax()) if values.numel() else torch.zeros(2)
        if not ends.isfinite().all():
            raise CheckpointError(f"{self.where} holds values that are not finite")
        if not ends.to(dtype).isfinite().all():
            raise CheckpointError(
                f"{self.where} holds values that are too large for {str(dtype).removeprefix('torch.')}"
            )
        return values

    def copy_into(self, weight: Tensor) -> None:
        """Give a weight of ours, or a view of one, the stored values, as numbers of its own dtype."""
        weight.copy_(self.read_finite(weight.dtype))

    @property
    def where(self) -> str:
        """How an error message about it begins."""
        return f"{self.path}: {shown(self.name)}"


def stored_in_folder(folder: Path) -> dict[str, Stored]:
    """The tensors of a saved model by name: of model.safetensors, or of the files that its index names."""
    if os.path.lexists(folder / WEIGHTS) or not os.path.lexists(folder / INDEX):
        return stored_in(folder / WEIGHTS)
    index = folder / INDEX
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index}: weight_map must be a table from the names of tensors to files")
    for file in places.values():
        if not isinstance(file, str) or not SHARD.fullmatch(file):
            raise CheckpointError(
                f"{index}: {shown(repr(file))} is not the name of a safetensors file beside the index"
            )
    found: dict[str, Stored] = {}
    for file in sorted(set(places.values())):
        for name, stored in stored_in(folder / file).items():
            if name in found:
                raise CheckpointError(f"{stored.path}: {shown(name)} is in {found[name].path.name} too")
            if places.get(name) != file:
                raise CheckpointError(f"{stored.path}: holds {shown(name)}, which {INDEX} does not say")
            found[name] = stored
    for name, file in places.items():
        if name not in found:
            raise CheckpointError(f"{folder / file}: {shown(name)} is missing, though {INDEX} says that it is here")
    return found


def stored_in(path: Path) -> dict[str, Stored]:
    """The tensors of one file by name; only its header is read."""
    if not os.path.lexists(path):
        raise CheckpointError(f"{path}: no such file{no_pickle(path.parent)}")
    try:
        with open_bytes(path) as file:
            whole = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(LENGTH), "little")
            if whole < LENGTH or length > whole - LENGTH:
                _altered(path, "it ends inside its header")
            if length > LARGEST_HEADER:
                raise CheckpointError(f"{path}: its header is larger than {LARGEST_HEADER // 2**20} MiB")
            text = file.read(length).decode("utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        _altered(path, "its header is not UTF-8")
    header = parse_object(text, path)
    header.pop(METADATA, None)
    start = LENGTH + length
    tensors = {name: _stored(name, entry, path, start) for name, entry in header.items()}
    _check_places(path, tensors.values(), start, whole)
    return tensors


def _stored(name: str, entry: Any, path: Path, start: int) -> Stored:
    """A tensor from its entry in the header; whether its place is inside the file is seen when all are known."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [first, last]} if len(entry) == 3:
            pass
        case _:
            _altered(path, f"{shown(name)} is not described by dtype, shape and data_offsets")
    if dtype not in DTYPES:
        raise CheckpointError(f"{path}: {shown(name)} is stored as {shown(dtype)}, not as {', '.join(DTYPES)}")
    if len(shape) > MOST_DIMENSIONS or not all(type(one) is int and 0 <= one <= LARGEST_DIMENSION for one in shape):
        _altered(path, f"{shown(name)} has a shape that cannot be")
    if not all(type(one) is int and one >= 0 for one in (first, last)):
        _altered(path, f"{shown(name)} has data_offsets that cannot be")
    if last - first != math.prod(shape) * DTYPES[dtype].itemsize:
        _altered(path, f"{shown(name)} has {last - first:,} bytes, not what {dtype} {shape} takes")
    return Stored(name, path, dtype, tuple(shape), start + first, last - first)


def _check_places(path: Path, tensors: Iterable[Stored], start: int, whole: int) -> None:
    """Raise unless the tensors, one after the other, are the rest of the file."""
    for stored in sorted(tensors, key=lambda stored: (stored.start, stored.size)):
        if stored.start != start:
            found = (
                "overlaps the tensor before it" if stored.start < start else "comes after bytes that are no tensor's"
            )
            _altered(path, f"{shown(stored.name)} {found}")
        start += stored.size
    if start != whole:
        _altered(path, f"it has {whole:,} bytes, and the header tells of {start:,}")


def _altered(path: Path, how: str) -> NoReturn:
    raise CheckpointError(f"{path}: cut short or altered: {how}")


def read_tensors(path: Path, shapes: Mapping[str, torch.Size] | None = None) -> dict[str, Tensor]:
    """Read a safetensors file; where shapes are given, names and shapes must be just those, and values finite."""
    if shapes is None:
        return {name: stored.read() for name, stored in stored_in(path).items()}
    return {name: stored.read_finite() for name, stored in stored_weights(path, shapes).items()}


def stored_weights(path: Path, shapes: Mapping[str, torch.Size]) -> dict[str, Stored]:
    """The tensors of one file by name, which must be just these."""
    found = stored_in(path)
    for name, shape in shapes.items():
        if name not in found:
            raise CheckpointError(f"{path}: {name} is missing")
        check_weight(found[name], shape)
    for name in found:
        if name not in shapes:
            raise CheckpointError(f"{path}: {shown(name)} is not part of the model")
    return found


def check_weight(stored: Stored, shape: Iterable[int]) -> None:
    """Raise unless a stored tensor is a weight of this shape."""
    if list(stored.shape) != list(shape):
        raise CheckpointError(f"{stored.where} has shape {list(stored.shape)}, the config asks for {list(shape)}")
    if stored.dtype not in NUMBERS:
        raise CheckpointError(f"{stored.where} is stored as {stored.dtype}, not as {', '.join(NUMBERS)}")


def write_tensors(tensors: Mapping[str, Tensor], path: Path, progress: Progress = lambda done: None) -> None:
    """Write a safetensors file; a tensor that is a view of another takes memory only in its turn."""
    # The widest numbers first: then every tensor begins at a multiple of its numbers' width.
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, Any] = {METADATA: {"format": "pt"}}  # which transformers asks for
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH, "little") + text)
        for name in order:
            values = tensors[name].detach().cpu().contiguous()
            file.write(values.reshape(-1).view(torch.uint8).numpy().data)
            progress(header[name]["data_offsets"][1])


def no_pickle(folder: Path) -> str:
    """Words for someone who has a pickle where safetensors should be; nothing for everyone else."""
    files = [folder] if folder.is_file() else folder.iterdir() if folder.is_dir() else []
    pickles = sorted(file.name for file in files if file.suffix in PICKLES)
    if not pickles:
        return ""
    return (
        f"; {pickles[0]} is a pickle, which could run any code and is never read: convert it to safetensors first, "
        "where you trust it (load it with transformers, and save_pretrained writes safetensors)"
    )
