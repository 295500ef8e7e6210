"""Attention over image patches, in the terminal and as an overlay PNG."""

import base64
import io
import os
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from qkv.interpret.image_probe import PictureAnswer
from qkv.pipelines.output import AttentionMap
from qkv.runtime.files import write_atomically
from qkv.visualize.selection import pick_head, pick_map

_SIDE = 448  # longer side of each image in pixels
_GAP = 16
_COLOR = np.array((61.0, 107.0, 255.0))  # distinct from gray images; as in explorer/app/timeline.js
_STRONGEST = 0.85  # opacity at the largest weight


def over_patches(pictured: PictureAnswer, layer: str | None = None) -> AttentionMap:
    """Return a layer's attention to the patches, from the class token or their mean, as a map over the patch grid."""
    attention_map = pick_map(pictured, layer)
    down, across = pictured.grid
    weights = attention_map.weights[:, 0, 1:].reshape(-1, down, across)
    rows, columns = (tuple(str(number) for number in range(1, count + 1)) for count in pictured.grid)
    return AttentionMap(attention_map.layer, rows, columns, weights)


def save_picture_png(
    pictured: PictureAnswer, path: str | os.PathLike[str], *, layer: str | None = None, head: int | None = None
) -> Path:
    """Write the image next to a gray version colored by the attention of the class token or of the mean."""
    weights = pick_head(over_patches(pictured, layer), head)
    original = resized(pictured.pixels, _SIDE)
    canvas = Image.new("RGB", (2 * original.width + _GAP, original.height), "white")
    canvas.paste(original, (0, 0))
    canvas.paste(colored(original.convert("L"), weights), (original.width + _GAP, 0))
    write_atomically(Path(path), png_bytes(canvas))
    return Path(path)


def png_bytes(image: Image.Image) -> bytes:
    """Return an image as a PNG file."""
    data = io.BytesIO()
    image.save(data, format="PNG")
    return data.getvalue()


def data_url(image: Image.Image) -> str:
    """Return the URL of an image that is part of a page."""
    return f"data:image/png;base64,{base64.b64encode(png_bytes(image)).decode()}"


def resized(pixels: UInt8[np.ndarray, "height width colors"], side: int) -> Image.Image:
    """Return an image whose longer side has `side` pixels, enlarged without interpolation."""
    shape = pixels.shape[:2]
    height, width = (max(1, round(size * side / max(shape))) for size in shape)
    method = Image.Resampling.NEAREST if side >= max(pixels.shape[:2]) else Image.Resampling.BOX
    return Image.fromarray(np.ascontiguousarray(pixels)).resize((width, height), method)


def colored(image: Image.Image, weights: Float[np.ndarray, "rows columns"]) -> Image.Image:
    """Blend a gray image with the overlay color in proportion to the weight of each patch."""
    gray = np.asarray(image)
    share = _STRONGEST * weights / (float(weights.max()) or 1.0)
    down, across = (np.arange(count) * cells // count for count, cells in zip(gray.shape, weights.shape, strict=True))
    share = share[down][:, across, None]
    return Image.fromarray(np.rint((1 - share) * gray[:, :, None] + share * _COLOR).astype(np.uint8))
