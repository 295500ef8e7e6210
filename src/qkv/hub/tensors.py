"""Safetensors files, single or sharded, read with the safetensors library. Files may come from an untrusted source.

The library checks that every tensor lies inside the file, that its size matches shape and dtype, and that tensors
neither overlap nor leave gaps. Reading therefore never needs more memory than the file is long.
"""

import errno
import io
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from qkv.errors import CheckpointError
from qkv.runtime.documents import open_bytes, parse_object, read_object
from qkv.runtime.download import Progress
from qkv.runtime.mapped import MappedFile
from qkv.runtime.text import printable
from qkv.types import Tensor

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)  # file name, not a path
WEIGHT_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
MAX_HEADER_BYTES = 2**24  # the library accepts 100 MB
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of an open safetensors file."""

    name: str
    path: Path
    file: Any  # safe_open
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        with _reading(self.path):
            return self.file.get_tensor(self.name)

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

    def check(self, shape: Iterable[int], dtypes: Collection[str] = WEIGHT_DTYPES) -> None:
        """Raise unless the tensor has this shape and one of these dtypes, by default a floating-point one."""
        if self.shape != tuple(shape):
            actual = printable(str(list(self.shape)))
            raise CheckpointError(f"{self.where} has shape {actual}, expected {list(shape)}")
        if self.dtype not in dtypes:
            raise CheckpointError(f"{self.where} has dtype {self.dtype}; supported: {', '.join(dtypes)}")

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
            if weight_map.get(name) != file:
                raise CheckpointError(f"{stored.where} is not listed in {INDEX}")
            tensors[name] = stored
    for name, file in weight_map.items():
        if name not in tensors:
            raise CheckpointError(f"{folder / file}: {printable(name)} is missing, but listed in {INDEX}")
    return tensors


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name, without reading their values."""
    if not os.path.lexists(path):
        raise CheckpointError(f"{path}: no such file{pickle_hint(path.parent)}")
    with open_bytes(path) as opened, _reading(path):  # only a regular file
        _read_header_size(opened)
        # With "mmap" a file that is truncated later would kill the process.
        file: Any = safe_open(path, framework="pt", backend="pread")
        entries = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        return {
            name: StoredTensor(name, path, file, entry.get_dtype(), tuple(entry.get_shape()))
            for name, entry in entries.items()
        }


def read_tensors(path: Path, shapes: Mapping[str, torch.Size] | None = None) -> dict[str, Tensor]:
    """Read a safetensors file; with `shapes`, names and shapes must match exactly and values must be finite."""
    if shapes is None:
        return {name: stored.read() for name, stored in read_header(path).items()}
    return {name: stored.read_finite() for name, stored in checked_header(path, shapes).items()}


def checked_header(
    path: Path, shapes: Mapping[str, torch.Size], dtypes: Mapping[str, str] = MappingProxyType({})
) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name; raise unless names and shapes match exactly.

    The dtype of a tensor must be that in `dtypes`, by default a floating-point one.
    """
    tensors = read_header(path)
    for name, shape in shapes.items():
        if name not in tensors:
            raise CheckpointError(f"{path}: {name} is missing")
        tensors[name].check(shape, (dtypes[name],) if name in dtypes else WEIGHT_DTYPES)
    for name in tensors:
        if name not in shapes:
            raise CheckpointError(f"{path}: {printable(name)} is not part of the model")
    return tensors


def map_tensors(stored: Sequence[StoredTensor]) -> dict[str, Tensor]:
    """Map int8 tensors of one file into memory; they are read from the file when they are used.

    A process that uses them is killed if the file is truncated meanwhile.
    """
    if not stored:
        return {}
    path = stored[0].path
    with open_bytes(path) as opened, _reading(path):
        size = _read_header_size(opened)
        header, file = parse_object(opened.read(size).decode(), path), MappedFile(opened)
        offsets = {tensor.name: 8 + size + header[tensor.name]["data_offsets"][0] for tensor in stored}
        return {tensor.name: file.tensor(torch.int8, offsets[tensor.name], tensor.shape) for tensor in stored}


def write_tensors(tensors: Mapping[str, Tensor], path: Path, progress: Progress = lambda done: None) -> None:
    """Write a safetensors file."""
    values = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(values, path, metadata={"format": "pt"})  # required by transformers
    except SafetensorError as error:  # disk full, ...
        raise OSError(errno.EIO, str(error)) from None
    progress(sum(value.nbytes for value in values.values()))


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


def _read_header_size(opened: io.BufferedReader) -> int:
    size = int.from_bytes(opened.read(8), "little")
    if size > MAX_HEADER_BYTES:
        raise SafetensorError(f"header larger than {MAX_HEADER_BYTES // 2**20} MiB")
    return size


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of the library into a CheckpointError of one line."""
    try:
        yield
    except (SafetensorError, OSError, RuntimeError, ValueError, OverflowError, LookupError) as error:
        raise CheckpointError(f"{path}: truncated or corrupt: {printable(str(error))}") from None
