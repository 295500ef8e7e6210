"""Pictures with a label each, and the files of MNIST's making that they come in."""

import struct
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from qkv.errors import InputError

UBYTE = 0x08  # the only kind of number that is read


@dataclass(frozen=True)
class Pictures:
    """Pictures of one size, and the number of each one's label among the names."""

    pixels: UInt8[ndarray, "count channels height width"]
    labels: Int64[ndarray, "count"]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> "Pictures":
        return Pictures(self.pixels[part], self.labels[part], self.names)


def parse_idx(data: bytes, where: str, dimensions: int) -> UInt8[ndarray, "..."]:
    """The bytes of an idx file: two zeros, the kind of number, how many dimensions, the size of each, the numbers."""
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, UBYTE, dimensions)):
        raise InputError(f"{where}: no idx file of bytes in {dimensions} dimension(s)")
    sizes = struct.unpack(f">{dimensions}I", data[4:header])
    count = 1
    for size in sizes:
        count *= size
    if len(data) - header != count:
        raise InputError(f"{where}: cut short or altered: {len(data) - header:,} numbers, but {count:,} are announced")
    return np.frombuffer(bytearray(data), dtype=np.uint8, offset=header).reshape(sizes)  # one that may be written to
