"""Labeled images, and the idx file format of MNIST."""

import struct
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from qkv.errors import InputError

UBYTE = 0x08  # the only supported element type


@dataclass(frozen=True)
class LabeledImages:
    """Images of one size, with a class index each."""

    pixels: UInt8[ndarray, "count channels height width"]
    labels: Int64[ndarray, "count"]
    names: tuple[str, ...]  # of the classes

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: slice) -> "LabeledImages":
        return LabeledImages(self.pixels[index], self.labels[index], self.names)


def parse_idx(data: bytes, where: str, dimensions: int) -> UInt8[ndarray, "..."]:
    """Parse an idx file: two zeros, element type, number of dimensions, their sizes, and the elements."""
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, UBYTE, dimensions)):
        raise InputError(f"{where}: not an idx file of bytes with {dimensions} dimension(s)")
    sizes = struct.unpack(f">{dimensions}I", data[4:header])
    count = 1
    for size in sizes:
        count *= size
    if len(data) - header != count:
        raise InputError(f"{where}: truncated or corrupt: {len(data) - header:,} elements, expected {count:,}")
    return np.frombuffer(bytearray(data), dtype=np.uint8, offset=header).reshape(sizes)  # writable
