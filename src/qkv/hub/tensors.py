"""Safetensors files: reading is safe for untrusted files, writing streams one tensor at a time.

    8 bytes: header length n | n bytes of JSON: {name: {dtype, shape, data_offsets}} | tensor data

The header is validated against the file: every tensor lies inside the file, its size matches shape and dtype, and
tensors neither overlap nor leave gaps. Reading therefore never needs more memory than the file is long.
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
from qkv.hub.json_file import parse_object, read_object
from qkv.runtime.documents import open_bytes
from qkv.runtime.text import printable
from qkv.types import Tensor

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)  # file name, not a path
WEIGHT_DTYPES = ("F16", "BF16", "F32", "F64")  # dtypes allowed for weights
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
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"
PREFIX = 8  # bytes that store the header length
MAX_HEADER_BYTES = 2**24  # bytes
MAX_DIMENSIONS, MAX_DIMENSION = 16, 2**48
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")

Progress = Callable[[int], None]  # called with the number of bytes done


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a safetensors file, as described by the header."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # byte offset in the file
    size: int  # in bytes

    def read(self) -> Tensor:
        if not self.size:
            return torch.empty(self.shape, dtype=DTYPES[self.dtype])
        data = bytearray(self.size)
        try:
            with open_bytes(self.path) as file:
                file.seek(self.start)
                if file.readinto(data) < self.size:
                    _corrupt(self.path, "unexpected end of file")
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error.strerror}") from None
        return torch.frombuffer(data, dtype=DTYPES[self.dtype]).view(self.shape)

    def read_finite(self, dtype: torch.dtype | None = None) -> Tensor:
        """Read the values; raise unless all are finite, also after conversion to `dtype`."""
        values = self.read()
        # Minimum and maximum reveal any infinity, and NaN propagates to both.
        ends = torch.stack(values.aminmax()) if values.numel() else torch.zeros(2)
        if not ends.isfinite().all():
            raise CheckpointError(f"{self.where} contains non-finite values")
        if not ends.to(dtype).isfinite().all():
            raise CheckpointError(f"{self.where} contains values out of range for {str(dtype).removeprefix('torch.')}")
        return values

    def copy_into(self, weight: Tensor) -> None:
        """Copy the stored values into a weight or a view of one, converted to its dtype."""
        weight.copy_(self.read_finite(weight.dtype))

    @property
    def where(self) -> str:
        """File and tensor name, to open an error message."""
        return f"{self.path}: {printable(self.name)}"


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model folder by name, from model.safetensors or the shards of its index."""
    if os.path.lexists(folder / WEIGHTS) or not os.path.lexists(folder / INDEX):
        return read_header(folder / WEIGHTS)
    index = folder / INDEX
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map must map tensor names to files")
    for file in weight_map.values():
        if not isinstance(file, str) or not SHARD.fullmatch(file):
            raise CheckpointError(f"{index}: {printable(repr(file))} is not the name of a safetensors file")
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(set(weight_map.values())):
        for name, stored in read_header(folder / file).items():
            if name in tensors:
                raise CheckpointError(f"{stored.path}: {printable(name)} is also in {tensors[name].path.name}")
            if weight_map.get(name) != file:
                raise CheckpointError(f"{stored.path}: {printable(name)} is not listed in {INDEX}")
            tensors[name] = stored
    for name, file in weight_map.items():
        if name not in tensors:
            raise CheckpointError(f"{folder / file}: {printable(name)} is missing, but listed in {INDEX}")
    return tensors


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name, from its header."""
    if not os.path.lexists(path):
        raise CheckpointError(f"{path}: no such file{pickle_hint(path.parent)}")
    try:
        with open_bytes(path) as file:
            file_size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(PREFIX), "little")
            if file_size < PREFIX or length > file_size - PREFIX:
                _corrupt(path, "the file ends inside its header")
            if length > MAX_HEADER_BYTES:
                raise CheckpointError(f"{path}: header larger than {MAX_HEADER_BYTES // 2**20} MiB")
            text = file.read(length).decode("utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        _corrupt(path, "the header is not UTF-8")
    header = parse_object(text, path)
    header.pop(METADATA, None)
    start = PREFIX + length
    tensors = {name: _parse_entry(name, entry, path, start) for name, entry in header.items()}
    _check_offsets(path, tensors.values(), start, file_size)
    return tensors


def _parse_entry(name: str, entry: Any, path: Path, start: int) -> StoredTensor:
    """Parse a header entry; `_check_offsets` validates its offsets afterwards."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [first, last]} if len(entry) == 3:
            pass
        case _:
            _corrupt(path, f"{printable(name)} must have dtype, shape and data_offsets")
    if dtype not in DTYPES:
        raise CheckpointError(f"{path}: {printable(name)} has dtype {printable(dtype)}; supported: {', '.join(DTYPES)}")
    if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and 0 <= n <= MAX_DIMENSION for n in shape):
        _corrupt(path, f"{printable(name)} has an invalid shape")
    if not all(type(offset) is int and offset >= 0 for offset in (first, last)):
        _corrupt(path, f"{printable(name)} has invalid data_offsets")
    if last - first != math.prod(shape) * DTYPES[dtype].itemsize:
        _corrupt(path, f"{printable(name)} has {last - first:,} bytes, which does not match {dtype} {shape}")
    return StoredTensor(name, path, dtype, tuple(shape), start + first, last - first)


def _check_offsets(path: Path, tensors: Iterable[StoredTensor], start: int, file_size: int) -> None:
    """Raise unless the tensors fill the file from `start` to its end without gaps or overlaps."""
    for stored in sorted(tensors, key=lambda stored: (stored.start, stored.size)):
        if stored.start != start:
            problem = "overlaps the previous tensor" if stored.start < start else "follows a gap"
            _corrupt(path, f"{printable(stored.name)} {problem}")
        start += stored.size
    if start != file_size:
        _corrupt(path, f"the file has {file_size:,} bytes, but the header describes {start:,}")


def _corrupt(path: Path, reason: str) -> NoReturn:
    raise CheckpointError(f"{path}: truncated or corrupt: {reason}")


def read_tensors(path: Path, shapes: Mapping[str, torch.Size] | None = None) -> dict[str, Tensor]:
    """Read a safetensors file; with `shapes`, names and shapes must match exactly and values must be finite."""
    if shapes is None:
        return {name: stored.read() for name, stored in read_header(path).items()}
    return {name: stored.read_finite() for name, stored in checked_header(path, shapes).items()}


def checked_header(path: Path, shapes: Mapping[str, torch.Size]) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name; raise unless names and shapes match exactly."""
    tensors = read_header(path)
    for name, shape in shapes.items():
        if name not in tensors:
            raise CheckpointError(f"{path}: {name} is missing")
        check_weight(tensors[name], shape)
    for name in tensors:
        if name not in shapes:
            raise CheckpointError(f"{path}: {printable(name)} is not part of the model")
    return tensors


def check_weight(stored: StoredTensor, shape: Iterable[int]) -> None:
    """Raise unless a stored tensor has this shape and a floating-point dtype."""
    if list(stored.shape) != list(shape):
        raise CheckpointError(f"{stored.where} has shape {list(stored.shape)}, expected {list(shape)}")
    if stored.dtype not in WEIGHT_DTYPES:
        raise CheckpointError(f"{stored.where} has dtype {stored.dtype}; supported: {', '.join(WEIGHT_DTYPES)}")


def write_tensors(tensors: Mapping[str, Tensor], path: Path, progress: Progress = lambda done: None) -> None:
    """Write a safetensors file, materializing one tensor at a time."""
    # Widest dtype first keeps every tensor aligned.
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, Any] = {METADATA: {"format": "pt"}}  # required by transformers
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(PREFIX, "little") + text)
        for name in order:
            values = tensors[name].detach().cpu().contiguous()
            file.write(values.reshape(-1).view(torch.uint8).numpy().data)
            progress(header[name]["data_offsets"][1])


def pickle_hint(folder: Path) -> str:
    """Return a hint for an error message if `folder` contains pickles, else an empty string."""
    files = [folder] if folder.is_file() else folder.iterdir() if folder.is_dir() else []
    pickles = sorted(file.name for file in files if file.suffix in PICKLES)
    if not pickles:
        return ""
    return (
        f"; {pickles[0]} is a pickle, which can execute code and is not supported: if you trust it, load it with "
        "transformers and convert it to safetensors with save_pretrained"
    )
