"""A picture from a file of the user's, as the pixels that a model reads. Nothing in the file is trusted."""

import warnings
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image, ImageOps, UnidentifiedImageError

from qkv.errors import InputError
from qkv.runtime.native import native_stderr_silenced

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
MOST_PIXELS = 2**26  # that are unpacked: a small file can announce any number
DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # one number of 16 bits a pixel


def read_picture(path: Path, channels: int, height: int, width: int) -> UInt8[ndarray, "channels height width"]:
    """The picture turned the way it was taken, scaled to a size; what is see-through stands on white."""
    if channels not in (1, 3):
        raise InputError(
            f"{path}: a picture has one channel (grey) or three (colours), and this model reads {channels}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong with a file is said below, and not by warnings
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise InputError(f"{image.width:,} x {image.height:,} pixels are too many: scale it down")
                with native_stderr_silenced():  # libtiff prints its warnings itself
                    image.load()
                flat = _on_white(ImageOps.exif_transpose(image)).convert("L" if channels == 1 else "RGB")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Image.DecompressionBombError:  # so large that Pillow does not open it
        raise InputError(f"{path}: has too many pixels: scale it down") from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, not a picture") from None
    except UnidentifiedImageError:
        raise InputError(f"{path}: not a picture that can be read ({', '.join(FORMATS)})") from None
    except Exception as error:  # a decoder may raise anything at a crafted file
        raise InputError(f"{path}: cut short or altered: {' '.join(str(error).split())[:200]}") from None
    pixels = np.asarray(flat.resize((width, height), Image.Resampling.BILINEAR))
    return pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise InputError("its pixels are floats, and nothing says which of them is white: save it with 8 or 16 bits")
    if image.mode in DEEP:  # Pillow would cut off what is above 255
        return Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 2**16 - 1) // 257).astype(np.uint8))
    if not image.has_transparency_data:
        return image
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA"))
