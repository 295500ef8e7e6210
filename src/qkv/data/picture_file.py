"""A picture from a file of the user's, as the pixels that a model reads. Nothing in the file is trusted."""

import io
import os
import warnings
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image, ImageOps, UnidentifiedImageError

from qkv.errors import InputError
from qkv.runtime.files import open_regular
from qkv.runtime.native import silence_native_stderr

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
MAX_PIXELS = 2**26  # a small file can announce any number
MAX_SIDE = 2**16  # the decoders keep a pointer and more for each row
MAX_BYTES = 2**28
MAX_SCANS = 2**8  # of a progressive JPEG, each of which passes over all pixels; encoders write about 10
ROWS = 2**10  # that are converted at once
DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # one number of 16 bits a pixel


def read_picture(path: Path, channels: int, height: int, width: int) -> UInt8[ndarray, "channels height width"]:
    """The picture turned the way it was taken, scaled to a size; what is see-through stands on white."""
    if channels not in (1, 3):
        raise InputError(
            f"{path}: a picture has one channel (grey) or three (colours), and this model reads {channels}"
        )
    try:
        with warnings.catch_warnings(), open_regular(path) as file:
            warnings.simplefilter("ignore")  # the errors below say it
            flat = _decoded(file, "L" if channels == 1 else "RGB")
    except InputError as error:
        where = "" if str(error).startswith(str(path)) else f"{path}: "
        raise InputError(f"{where}{error}") from None
    except Image.DecompressionBombError:  # so large that Pillow does not open it
        raise InputError(f"{path}: has too many pixels: scale it down") from None
    except UnidentifiedImageError:
        raise InputError(f"{path}: not a picture that can be read ({', '.join(FORMATS)})") from None
    except Exception as error:  # a decoder may raise anything at a crafted file
        raise InputError(f"{path}: cut short or altered: {' '.join(str(error).split())[:200]}") from None
    pixels = np.asarray(flat.resize((width, height), Image.Resampling.BILINEAR))
    return pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)


def _decoded(file: io.BufferedReader, mode: str) -> Image.Image:
    """The first frame in the given mode, after its sizes were checked."""
    if os.fstat(file.fileno()).st_size > MAX_BYTES:
        raise InputError(f"larger than {MAX_BYTES // 2**20} MiB")
    with Image.open(file, formats=FORMATS) as image:
        if max(image.size) > MAX_SIDE or image.width * image.height > MAX_PIXELS:
            raise InputError(f"{image.width:,} x {image.height:,} pixels are too many: scale it down")
        if image.format in ("JPEG", "MPO"):
            _check_scans(file)
        with silence_native_stderr():  # libtiff prints its warnings itself
            image.load()
        ImageOps.exif_transpose(image, in_place=True)
        flat = Image.new(mode, image.size)
        for top in range(0, image.height, ROWS):  # in parts, for a conversion takes several copies
            part = image.crop((0, top, image.width, min(top + ROWS, image.height)))
            flat.paste(_on_white(part).convert(mode), (0, top))
    return flat


def _check_scans(file: io.BufferedReader) -> None:
    """Raise for a JPEG with too many scans; the marker cannot occur within their data."""
    start = file.tell()
    file.seek(0)
    count = sum(chunk.count(b"\xff\xda") for chunk in iter(lambda: file.read(2**20), b""))
    file.seek(start)
    if count > MAX_SCANS:
        raise InputError(f"a JPEG with {count:,} scans, at most {MAX_SCANS} are accepted")


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise InputError("its pixels are floats, and nothing says which of them is white: save it with 8 or 16 bits")
    if image.mode in DEEP:  # Pillow would cut off what is above 255
        return Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 2**16 - 1) // 257).astype(np.uint8))
    if not image.has_transparency_data:
        return image
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA"))
