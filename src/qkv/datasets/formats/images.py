"""Labeled images, the idx file format of MNIST, and image files of users, which are not trusted."""

import io
import math
import os
import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray
from PIL import Image, ImageOps, UnidentifiedImageError

from qkv.errors import InputError
from qkv.runtime.bars import Bars
from qkv.runtime.files import open_regular
from qkv.runtime.native import silence_native_stderr
from qkv.runtime.text import printable

UBYTE = 0x08  # the only supported element type of idx files
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")  # of image files, in lower case
MAX_PIXELS = 2**26  # a small file can declare any size
MAX_SIDE = 2**16  # the decoders allocate memory for each row
MAX_BYTES = 2**28
MAX_SHOWN_SIDE = 1600  # pixels of the longer side of an image for display
MAX_SHOWN_BYTES = 2**28  # of all images of a call, for display
MAX_SCANS = 2**8  # of a progressive JPEG, each a pass over all pixels; encoders write about 10
ROWS = 2**10  # converted at once
ImageSource = str | Path | Image.Image  # a file, or an image in memory
MODES_16_BIT = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # grayscale


@dataclass(frozen=True)
class LabeledImages:
    """Images of one size, with a class index each."""

    pixels: UInt8[ndarray, "count channels height width"]
    labels: Int64[ndarray, "count"]
    names: tuple[str, ...]  # of the classes
    files: tuple[str, ...] = ()  # of the images, if they are files of the user

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: slice) -> "LabeledImages":
        return LabeledImages(self.pixels[index], self.labels[index], self.names, self.files[index])

    def select(self, rows: Sequence[int]) -> "LabeledImages":
        """Return some of the images."""
        files = tuple(self.files[row] for row in rows) if self.files else ()
        return LabeledImages(self.pixels[rows], self.labels[rows], self.names, files)

    def with_names(self, names: tuple[str, ...], where: str) -> "LabeledImages":
        """Return the images with the class indices of other names, which must include all classes."""
        if unknown := [name for name in self.names if name not in names]:
            raise InputError(f"{where}: the class {printable(repr(unknown[0]), 40)} has no training images")
        indices = np.array([names.index(name) for name in self.names], dtype=np.int64)
        return replace(self, labels=indices[self.labels], names=names)


def parse_idx(data: bytes, where: str, dimensions: int) -> UInt8[ndarray, "..."]:
    """Parse an idx file: two zeros, element type, number of dimensions, their sizes, and the elements."""
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, UBYTE, dimensions)):
        raise InputError(f"{where}: not an idx file of bytes with {dimensions} dimension(s)")
    sizes = struct.unpack(f">{dimensions}I", data[4:header])
    count = math.prod(sizes)
    if len(data) - header != count:
        raise InputError(f"{where}: truncated or corrupt: {len(data) - header:,} elements, expected {count:,}")
    return np.frombuffer(bytearray(data), dtype=np.uint8, offset=header).reshape(sizes)  # writable


def read_image(source: ImageSource, channels: int, height: int, width: int) -> UInt8[ndarray, "channels height width"]:
    """Read an image, rotated according to EXIF, resized, with transparent pixels on white."""
    return resize_image(_load_for(source, channels), height, width)


def read_image_for_display(
    source: ImageSource, channels: int, height: int, width: int, count: int
) -> tuple[UInt8[ndarray, "channels height width"], UInt8[ndarray, "rows columns colors"]]:
    """Read an image as `read_image` does; also return it for display, one of `count` images."""
    image = _load_for(source, channels)
    return resize_image(image, height, width), pixels_for_display(image, count)


def pixels_for_display(image: Image.Image, count: int) -> UInt8[ndarray, "rows columns colors"]:
    """Return an image at its own resolution, reduced only if it is large for one of `count` images in memory."""
    side = min(MAX_SHOWN_SIDE, math.isqrt(MAX_SHOWN_BYTES // (3 * max(1, count))))
    shown = image.convert("RGB")
    shown.thumbnail((side, side))
    return np.asarray(shown)


def _load_for(source: ImageSource, channels: int) -> Image.Image:
    """Return an image as a model with this number of channels needs it."""
    if channels not in (1, 3):
        name = image_name(source)
        raise InputError(f"{name}: images have one channel (grayscale) or three (RGB), but this model has {channels}")
    return load_image(source, "L" if channels == 1 else "RGB")


def load_image(source: ImageSource, mode: str = "RGB") -> Image.Image:
    """Return an image in the given mode, rotated according to EXIF, with transparent pixels on white."""
    if isinstance(source, Image.Image):
        return _upright(source.copy(), mode)
    with open_regular(Path(source)) as file:
        return decode_image(file, str(source), mode)


def encode_png(pixels: UInt8[ndarray, "channels height width"]) -> bytes:
    """Return an image of one or three channels as a PNG file."""
    file, channels_last = io.BytesIO(), pixels.transpose(1, 2, 0)
    Image.fromarray(channels_last[:, :, 0] if len(pixels) == 1 else channels_last).save(file, format="PNG")
    return file.getvalue()


def image_of_array(array: ndarray) -> ImageSource | ndarray:
    """Return the image in an array of pixels; arrays of other objects, such as paths, are returned as such."""
    if array.dtype.kind not in "fiub":
        return array
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)) or not array.size:
        raise InputError(
            f"an image is an array of uint8 [height, width] or [height, width, 3], not of {array.dtype} "
            f"{list(array.shape)}"
        )
    return Image.fromarray(np.ascontiguousarray(array))


def image_name(source: ImageSource) -> str:
    """Return the name of an image: its path, also of the file that an image in memory was read from, or "image"."""
    return str((getattr(source, "filename", "") or "image") if isinstance(source, Image.Image) else source)


def short_names(sources: Sequence[ImageSource]) -> list[str]:
    """Return the file names of images; those of different files with equal names include as many folders as differ."""
    paths = [Path(image_name(source)) for source in sources]
    groups: dict[str, set[Path]] = {}
    for path in paths:
        groups.setdefault(path.name, set()).add(path)
    parts = {name: _distinct_parts(group) for name, group in groups.items()}
    return [Path(*path.parts[-parts[path.name] :]).as_posix() if path.name else str(path) for path in paths]


def _distinct_parts(paths: set[Path]) -> int:
    """Return how many of the last parts tell different paths apart."""
    longest = max(len(path.parts) for path in paths)
    return next((n for n in range(1, longest) if len({path.parts[-n:] for path in paths}) == len(paths)), longest)


def read_images(
    paths: Sequence[Path], channels: int, side: int, *, skip_unreadable: bool = False
) -> tuple[UInt8[ndarray, "count channels side side"], list[int], list[str]]:
    """Read images resized to squares; return the pixels, the indices of the paths that were read, and notes.

    All files are tried before an unreadable one is an error, so that the message has their number.
    """
    import torch  # torch is slow to import, and listing datasets does not need it

    from qkv.runtime.memory import require_memory

    size = len(paths) * channels * side * side
    what = f"{len(paths):,} images of {side} x {side} pixels"
    require_memory(what, {"pixels": size}, torch.device("cpu"), lambda: "set a smaller data.side")
    pixels: UInt8[ndarray, "count channels height width"] = np.empty((len(paths), channels, side, side), np.uint8)
    kept, problems = list[int](), list[str]()
    with Bars().count_bar("images", len(paths)) as progress:
        for index, path in enumerate(paths):
            try:
                pixels[len(kept)] = read_image(path, channels, side, side)
                kept.append(index)
            except InputError as error:
                problems.append(str(error))
            progress(index + 1)
    if problems and not skip_unreadable:
        raise InputError(
            f"{problems[0]} ({len(problems):,} of {len(paths):,} images cannot be read: remove them, or skip them with "
            "--set data.skip_unreadable=true)"
        )
    notes = [f"skipped {len(problems):,} image(s) that cannot be read, the first: {problems[0]}"] if problems else []
    return pixels[: len(kept)], kept, notes


def resize_image(image: Image.Image, height: int, width: int) -> UInt8[ndarray, "channels height width"]:
    """Return the pixels of an image as an array after resizing, which does not keep the aspect ratio."""
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def decode_image(file: IO[bytes], where: str, mode: str = "RGB") -> Image.Image:
    """Decode an image file, rotated according to EXIF, with transparent pixels on white; errors begin with `where`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # covered by the errors below
            return _decode(file, mode)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except Image.DecompressionBombError:  # too large for Pillow to open
        raise InputError(f"{where}: has too many pixels: resize it first") from None
    except UnidentifiedImageError:
        raise InputError(f"{where}: not an image in a supported format ({', '.join(FORMATS)})") from None
    except Exception as error:  # decoders may raise anything for a crafted file
        raise InputError(f"{where}: truncated or corrupt: {' '.join(str(error).split())[:200]}") from None


def _decode(file: IO[bytes], mode: str) -> Image.Image:
    """Check the size of an image, and decode its first frame in the given mode."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size > MAX_BYTES:
        raise InputError(f"larger than {MAX_BYTES // 2**20} MiB")
    with Image.open(file, formats=FORMATS) as image:
        if max(image.size) > MAX_SIDE or image.width * image.height > MAX_PIXELS:
            raise InputError(f"{image.width:,} x {image.height:,} pixels are too many: resize it first")
        if image.format in ("JPEG", "MPO"):
            _check_scans(file)
        with silence_native_stderr():  # libtiff writes warnings to stderr
            image.load()
        return _upright(image, mode)


def _upright(image: Image.Image, mode: str) -> Image.Image:
    """Rotate a loaded image in place according to EXIF, and return it in the given mode."""
    ImageOps.exif_transpose(image, in_place=True)
    flat = Image.new(mode, image.size)
    for top in range(0, image.height, ROWS):  # in parts, because a conversion makes several copies
        part = image.crop((0, top, image.width, min(top + ROWS, image.height)))
        flat.paste(_on_white(part).convert(mode), (0, top))
    return flat


def _check_scans(file: IO[bytes]) -> None:
    """Raise for a JPEG with too many scans; the marker cannot occur within their data."""
    start = file.tell()
    file.seek(0)
    count = sum(chunk.count(b"\xff\xda") for chunk in iter(lambda: file.read(2**20), b""))
    file.seek(start)
    if count > MAX_SCANS:
        raise InputError(f"a JPEG with {count:,} scans, at most {MAX_SCANS} are accepted")


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise InputError("float pixels have no defined range: save the image with 8 or 16 bits")
    if image.mode in MODES_16_BIT:  # Pillow would clip at 255
        return Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 2**16 - 1) // 257).astype(np.uint8))
    if not image.has_transparency_data:
        return image
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA"))
