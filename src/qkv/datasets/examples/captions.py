"""Captioned images, and their files."""

import io
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped, UInt8
from numpy import ndarray

from qkv.datasets.formats.archive import tar_members
from qkv.datasets.formats.images import decode_image, read_image, resize_image
from qkv.errors import InputError
from qkv.runtime.bars import Bars
from qkv.runtime.files import open_regular
from qkv.runtime.text import printable

MAX_BYTES = 2**36  # of the images of one split, all held in memory
MAX_IMAGE_BYTES = 2**26  # of an image in an archive
FLOATS = ("F16", "F32", "F64")
BACKBONE = "backbone"  # key of the metadata of a features file


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
    files: tuple[str, ...] = ()  # of the images, if they are files of the user

    def __len__(self) -> int:
        return len(self.texts)

    def name(self, index: int) -> str:
        """Return the file of an image, or its number."""
        return self.files[index] if self.files else f"image {index + 1}"

    def __getitem__(self, index: slice) -> "Captions":
        return Captions(self.images[index], self.texts[index], self.objects[index], self.files[index])


@dataclass(frozen=True)
class CaptionFiles:
    """The captions of a split by image name, and the folder or .tar file of the images."""

    texts: Mapping[str, Sequence[str]]
    images: Path

    def __getitem__(self, index: slice) -> "CaptionFiles":
        return CaptionFiles(dict(list(self.texts.items())[index]), self.images)

    def open_images(self, side: int) -> Iterator[tuple[str, UInt8[ndarray, "channels side side"]]]:
        """Yield the name and the pixels of each image, resized to a square; in any order."""
        if self.images.suffix != ".tar":
            for name in self.texts:
                yield name, read_image(path_inside(self.images, name), 3, side, side)
            return
        missing = set(self.texts)
        for name, data in tar_members(self.images, MAX_IMAGE_BYTES):
            if name in missing:
                missing.remove(name)
                where = f"{self.images}: {printable(name, 80)}"
                yield name, resize_image(decode_image(io.BytesIO(data), where), side, side)
        if missing:
            raise InputError(f"{self.images}: there is no image {printable(min(missing), 80)} in this archive")


def read_captioned_images(files: CaptionFiles, side: int, features: Path | None = None) -> Captions:
    """Read the images of the captions, resized to a square, or their features from a file."""
    captions = tuple(map(tuple, files.texts.values()))
    if features is not None:
        return Captions(read_features(features, list(files.texts)), captions)
    size = len(captions) * 3 * side * side
    if size > MAX_BYTES:
        raise InputError(
            f"{files.images}: {len(captions):,} images of {side} x {side} pixels take {size / 2**30:.0f} GiB: set "
            "data.size or a smaller data.side"
        )
    pixels: UInt8[ndarray, "count channels height width"] = np.empty((len(captions), 3, side, side), dtype=np.uint8)
    rows = {name: row for row, name in enumerate(files.texts)}
    with Bars().count_bar(f"images of {files.images.name}", len(captions)) as progress:
        for done, (name, image) in enumerate(files.open_images(side), start=1):
            pixels[rows[name]] = image
            progress(done)
    return Captions(pixels, captions)


def strip_punctuation(text: str) -> str:
    """Remove all but letters, digits and spaces: "A dog, in a T-shirt ." becomes "A dog in a Tshirt"."""
    return " ".join(re.sub(r"[^\w\s]|_", "", text).split())


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a file directly in the folder; names that lead elsewhere are errors."""
    if Path(name).name != name:
        raise InputError(f"{folder}: {printable(repr(name), 80)} is not the name of an image in this folder")
    if not os.path.isfile(folder / name):
        raise InputError(f"{folder}: there is no image {printable(name, 80)}: no such file")
    return folder / name


def read_features(path: Path, names: Sequence[str] | None = None) -> Float[ndarray, "count channels rows columns"]:
    """Read the features [channels, rows, columns] of each image from a safetensors file, float16 ones as they are."""
    with _open(path) as file:
        available = set(file.keys())
        names = sorted(available) if names is None else names
        if not names:
            raise InputError(f"{path}: contains no features")
        shape, grids = list[int](), np.empty(0)
        for row, name in enumerate(names):
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
            if not row:
                grids = np.empty((len(names), *shape), np.float16 if stored.get_dtype() == "F16" else np.float32)
            grids[row] = stored[:]
            if not np.isfinite(grids[row]).all():
                raise InputError(f"{path}: some features of {printable(name, 80)} are not finite")
    return grids


def feature_names(path: Path) -> list[str]:
    """Return the names of the images in a features file."""
    with _open(path) as file:
        return sorted(file.keys())


def feature_backbone(path: Path) -> str:
    """Return the name of the network that computed the features of a file; "" if unknown."""
    with _open(path) as file:
        return str((file.metadata() or {}).get(BACKBONE, ""))


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
