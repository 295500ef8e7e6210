"""Tensors in memory-mapped files, and the release of their pages."""

import io
import mmap
from weakref import WeakKeyDictionary

import torch

from qkv.types import Shaped, Tensor

_STARTS: WeakKeyDictionary[mmap.mmap, int] = WeakKeyDictionary()  # address of each mapped file


class MappedFile:
    """A file mapped into memory. Pages are read when they are used; writing to them does not change the file."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        _STARTS[self._mapping] = torch.frombuffer(self._mapping, dtype=torch.uint8, count=1).data_ptr()

    def __len__(self) -> int:
        return len(self._mapping)

    def tensor(self, dtype: torch.dtype, offset: int, shape: tuple[int, ...]) -> Shaped[Tensor, "*shape"]:
        """Return the tensor at an offset in bytes; it keeps the mapping alive."""
        return torch.frombuffer(self._mapping, dtype=dtype, offset=offset, count=torch.Size(shape).numel()).view(shape)


def release_pages(tensor: Shaped[Tensor, "*shape"]) -> None:
    """Take the pages of a tensor in a mapped file out of memory; they are read again when they are used.

    Does nothing for other tensors, and for tensors that were modified.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor._version:
        return
    for mapping, start in _STARTS.items():
        begin = tensor.data_ptr() - start
        if begin >= 0 and begin + tensor.nbytes <= len(mapping):
            first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (begin + tensor.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
            if length > 0 and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
                mapping.madvise(mmap.MADV_DONTNEED, first, length)
            return
