"""Images of extreme size, with many frames, truncated, or in another format than their file name says."""

import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image

from tests.robustness.mutators.registry import Target, mutator

IMAGES = ("*.png", "*.jpg", "*.gif", "*.tiff", "*.bmp", "*.webp", "*.ppm")
MODES = ("1", "L", "P", "RGBA", "LA", "CMYK", "I;16", "I", "F", "RGB")


def _png(width: int, height: int, *, color: int = 0, rows: int | None = None) -> bytes:
    """A PNG of zeros that announces any size; `rows` of it have data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    channels = {0: 1, 2: 3}[color]
    packer = zlib.compressobj(9)
    size = (1 + width * channels) * (height if rows is None else rows)
    packed = b"".join(packer.compress(bytes(min(1 << 20, size - done))) for done in range(0, size, 1 << 20))
    head = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    ends = chunk(b"IDAT", packed + packer.flush()) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + ends


@mutator("image", *IMAGES)
def tall_image(target: Target) -> str:
    height = target.random.choice([100_000, 1_000_000, 2**26 - 1, 2**26])
    target.path.write_bytes(_png(1, height))
    return f"a PNG of 1 x {height}"


@mutator("image", *IMAGES)
def wide_image(target: Target) -> str:
    width = target.random.choice([100_000, 10_000_000, 2**26])
    target.path.write_bytes(_png(width, 1))
    return f"a PNG of {width} x 1"


@mutator("image", *IMAGES)
def large_image(target: Target) -> str:
    side = target.random.choice([2000, 8000, 8192])
    target.path.write_bytes(_png(side, side, color=target.random.choice([0, 2])))
    return f"a PNG of {side} x {side} zeros"


@mutator("image", *IMAGES)
def announced_size(target: Target) -> str:
    width, height = target.random.choice([(2**31 - 1, 2**31 - 1), (50_000, 50_000), (0, 0), (8000, 8000), (2**31, 1)])
    target.path.write_bytes(_png(width, height, rows=0))
    return f"a PNG that announces {width} x {height} and has no data"


@mutator("image", *IMAGES)
def many_frames(target: Target) -> str:
    form, count = target.random.choice([("GIF", 2000), ("TIFF", 500), ("PNG", 500), ("WEBP", 200)])
    pixels = np.random.default_rng(0).integers(0, 255, (count, 4, 4), dtype=np.uint8)
    first, *others = [Image.fromarray(one) for one in pixels]
    first.save(target.path, format=form, save_all=True, append_images=others)
    return f"{count} frames as {form}"


@mutator("image", *IMAGES)
def truncated_image(target: Target) -> str:
    form = target.random.choice(["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM"])
    data = _encoded(target, form)
    size = target.random.randrange(len(data))
    target.path.write_bytes(data[:size])
    return f"{form} cut to {size} of {len(data)} bytes"


@mutator("image", *IMAGES)
def flipped_image(target: Target) -> str:
    form = target.random.choice(["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM"])
    options = {"compression": target.random.choice(["tiff_lzw", "tiff_deflate", "packbits"])} if form == "TIFF" else {}
    data = bytearray(_encoded(target, form, **options))
    for _ in range(target.random.choice([1, 4, 20])):
        data[target.random.randrange(len(data))] ^= 1 << target.random.randrange(8)
    target.path.write_bytes(data)
    return f"{form} {options or ''} with flipped bits"


@mutator("image", *IMAGES)
def unusual_mode(target: Target) -> str:
    mode, form = target.random.choice([(mode, form) for mode in MODES for form in ("PNG", "TIFF")])
    image = Image.new(mode, (9, 7))
    try:
        image.save(target.path, format=form)
    except (OSError, ValueError, KeyError):
        image.convert("L").save(target.path, format="PNG")
    return f"mode {mode} as {form}"


@mutator("image", *IMAGES)
def not_an_image(target: Target) -> str:
    form = target.random.choice(["EPS", "PDF", "ICO", "TGA", "SGI", "DIB"])
    image = Image.new("RGB", (16, 16), "red")
    if form in ("EPS", "PDF"):
        target.path.write_bytes(
            {"EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PDF": b"%PDF-1.4\n"}[form]
        )
    else:
        image.save(target.path, format=form)
    return f"another format: {form}"


def _encoded(target: Target, form: str, **options: str) -> bytes:
    pixels = np.random.default_rng(target.random.randrange(1000)).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    data = BytesIO()
    Image.fromarray(pixels).save(data, format=form, **options)
    return data.getvalue()
