"""Pictures with captions: what there is of each, and how they are read from a folder of files."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped, UInt8
from numpy import ndarray

from qkv.config import shown
from qkv.data.picture_file import read_picture
from qkv.errors import InputError
from qkv.runtime.bars import Bars
from qkv.runtime.files import open_regular

MOST_BYTES = 2**36  # of the pictures of one split, which are all held in memory
FLOATS = ("F16", "F32", "F64")


@dataclass(frozen=True)
class Named:
    """An object in a picture, and the words of its caption that name it."""

    box: tuple[int, int, int, int]  # top, left, bottom and right in pixels; bottom and right are just outside
    words: tuple[int, ...]  # by their numbers, where the caption is split at its spaces


@dataclass(frozen=True)
class Captions:
    """Pictures of one size, what is said of each, and where it is known, its objects.

    A grid of features that another network has found is a picture, too: one of floats, with as many channels as
    features.
    """

    pictures: Shaped[ndarray, "count channels height width"]
    texts: tuple[tuple[str, ...], ...]  # of each picture one caption or more; objects are named in the first
    objects: tuple[tuple[Named, ...], ...] = ()  # of each picture; none where nobody knows
    notes: tuple[str, ...] = ()  # about what was passed over

    def __post_init__(self) -> None:
        if len(self.pictures) != len(self.texts) or (self.objects and len(self.objects) != len(self.texts)):
            raise InputError(f"{len(self.pictures)} picture(s) have captions for {len(self.texts)}: one entry for each")
        if not all(self.texts):
            raise InputError(f"picture {self.texts.index(())} has no caption")

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, part: slice) -> "Captions":
        return Captions(self.pictures[part], self.texts[part], self.objects[part], self.notes)


def read_captioned(
    texts: Mapping[str, Sequence[str]], folder: Path, side: int, features: Path | None = None
) -> Captions:
    """The captions of the named files, with their pictures scaled to a square, or with what was found in them."""
    said = tuple(tuple(some) for some in texts.values())
    if features is not None:
        return Captions(read_features(features, list(texts)), said)
    size = len(texts) * 3 * side * side
    if size > MOST_BYTES:
        raise InputError(
            f"{folder}: {len(texts):,} pictures of {side} x {side} pixels take {size / 2**30:.0f} GiB: set data.size "
            "or a smaller data.side"
        )
    pixels: UInt8[ndarray, "count channels height width"] = np.empty((len(texts), 3, side, side), dtype=np.uint8)
    with Bars().count_bar(f"pictures of {folder.name}", len(texts)) as progress:
        for number, name in enumerate(texts):
            pixels[number] = read_picture(inside(folder, name), 3, side, side)
            progress(number + 1)
    return Captions(pixels, said)


def inside(folder: Path, name: str) -> Path:
    """The file of that name in the folder itself: a list of captions names no file elsewhere."""
    if Path(name).name != name:
        raise InputError(f"{folder}: {shown(repr(name), 80)} is not the name of a picture in it")
    if not os.path.isfile(folder / name):
        raise InputError(f"{folder}: there is no picture {shown(name, 80)} in it: no such file")
    return folder / name


def read_features(path: Path, names: Sequence[str] | None = None) -> Float32[ndarray, "count channels rows columns"]:
    """A grid of features for each name, from a safetensors file with a tensor [channels, rows, columns] for each."""
    grids = list(_grids(path, names))
    if not grids:
        raise InputError(f"{path}: holds no features")
    return np.stack(grids)


def feature_names(path: Path) -> list[str]:
    """The names of what a file of features was made of."""
    with _opened(path) as file:
        return sorted(file.keys())


def _grids(path: Path, names: Sequence[str] | None) -> Iterator[Float32[ndarray, "channels rows columns"]]:
    with _opened(path) as file:
        known = set(file.keys())
        wanted = sorted(known) if names is None else names
        shape: list[int] | None = None
        for name in wanted:
            if name not in known:
                raise InputError(f"{path}: has no features of {shown(name, 80)}")
            stored = file.get_slice(name)
            shape = shape or stored.get_shape()
            if stored.get_dtype() not in FLOATS or len(shape) != 3 or stored.get_shape() != shape or 0 in shape:
                raise InputError(
                    f"{path}: {shown(name, 80)} is {stored.get_dtype()} {stored.get_shape()}, and features are floats "
                    "[channels, rows, columns], of one shape for all"
                )
            if 4 * len(wanted) * math.prod(shape) > MOST_BYTES:
                raise InputError(f"{path}: the features take more than {MOST_BYTES // 2**30} GiB: set data.size")
            grid = stored[:].astype(np.float32)
            if not np.isfinite(grid).all():
                raise InputError(f"{path}: some features of {shown(name, 80)} are not finite numbers")
            yield grid


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file, or an error that says what is wrong with it."""
    from safetensors import SafetensorError, safe_open

    open_regular(path).close()  # safe_open would wait for a FIFO
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: no safetensors file that can be read: {error}") from None
