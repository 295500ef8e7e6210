"""Captioned images, and their files."""

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

from qkv.datasets.formats.images import read_image
from qkv.errors import InputError
from qkv.runtime.bars import Bars
from qkv.runtime.files import open_regular
from qkv.runtime.text import printable

MAX_BYTES = 2**36  # of the images of one split, all held in memory
FLOATS = ("F16", "F32", "F64")


@dataclass(frozen=True)
class Named:
    """An object in an image, and the words of the caption that name it."""

    box: tuple[int, int, int, int]  # (top, left, bottom, right) in pixels, bottom and right exclusive
    words: tuple[int, ...]  # indices into the caption split at spaces


@dataclass(frozen=True)
class Captions:
    """Images of one size, their captions, and their objects if annotated.

    An image can also be a grid of features from a pretrained network: float values, with one channel per feature.
    """

    images: Shaped[ndarray, "count channels height width"]
    texts: tuple[tuple[str, ...], ...]  # one or more captions per image; objects refer to the first
    objects: tuple[tuple[Named, ...], ...] = ()  # per image; empty if not annotated

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: slice) -> "Captions":
        return Captions(self.images[index], self.texts[index], self.objects[index])


def read_captioned_images(
    texts: Mapping[str, Sequence[str]], folder: Path, side: int, features: Path | None = None
) -> Captions:
    """Read the images of the captions, resized to a square, or their features from a file."""
    captions = tuple(tuple(of_image) for of_image in texts.values())
    if features is not None:
        return Captions(read_features(features, list(texts)), captions)
    size = len(texts) * 3 * side * side
    if size > MAX_BYTES:
        raise InputError(
            f"{folder}: {len(texts):,} images of {side} x {side} pixels take {size / 2**30:.0f} GiB: set data.size "
            "or a smaller data.side"
        )
    pixels: UInt8[ndarray, "count channels height width"] = np.empty((len(texts), 3, side, side), dtype=np.uint8)
    with Bars().count_bar(f"images of {folder.name}", len(texts)) as progress:
        for index, name in enumerate(texts):
            pixels[index] = read_image(path_inside(folder, name), 3, side, side)
            progress(index + 1)
    return Captions(pixels, captions)


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a file directly in the folder; names that lead elsewhere are errors."""
    if Path(name).name != name:
        raise InputError(f"{folder}: {printable(repr(name), 80)} is not the name of an image in this folder")
    if not os.path.isfile(folder / name):
        raise InputError(f"{folder}: there is no image {printable(name, 80)}: no such file")
    return folder / name


def read_features(path: Path, names: Sequence[str] | None = None) -> Float32[ndarray, "count channels rows columns"]:
    """Read the features [channels, rows, columns] of each image from a safetensors file."""
    grids = list(_grids(path, names))
    if not grids:
        raise InputError(f"{path}: contains no features")
    return np.stack(grids)


def feature_names(path: Path) -> list[str]:
    """Return the names of the images in a features file."""
    with _open(path) as file:
        return sorted(file.keys())


def _grids(path: Path, names: Sequence[str] | None) -> Iterator[Float32[ndarray, "channels rows columns"]]:
    with _open(path) as file:
        available = set(file.keys())
        names = sorted(available) if names is None else names
        shape: list[int] | None = None
        for name in names:
            if name not in available:
                raise InputError(f"{path}: has no features of {printable(name, 80)}")
            stored = file.get_slice(name)
            shape = shape or stored.get_shape()
            if stored.get_dtype() not in FLOATS or len(shape) != 3 or stored.get_shape() != shape or 0 in shape:
                raise InputError(
                    f"{path}: {printable(name, 80)} is {stored.get_dtype()} {stored.get_shape()}; expected floats "
                    "[channels, rows, columns] of one shape for all images"
                )
            if 4 * len(names) * math.prod(shape) > MAX_BYTES:
                raise InputError(f"{path}: the features take more than {MAX_BYTES // 2**30} GiB: set data.size")
            grid = stored[:].astype(np.float32)
            if not np.isfinite(grid).all():
                raise InputError(f"{path}: some features of {printable(name, 80)} are not finite")
            yield grid


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Open a safetensors file; an invalid one raises InputError."""
    from safetensors import SafetensorError, safe_open

    open_regular(path).close()  # safe_open would block on a FIFO
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a valid safetensors file: {error}") from None
