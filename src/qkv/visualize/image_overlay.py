"""Attention over image patches, in the terminal and as an overlay PNG."""

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
_COLOUR = np.array((61.0, 107.0, 255.0))  # distinct from grey images; as in attention_page.html
_STRONGEST = 0.85  # opacity at the largest weight


def over_patches(pictured: PictureAnswer, layer: str | None = None) -> AttentionMap:
    """Return a layer's attention from the class token to the patches, as a map over the patch grid."""
    attention_map = pick_map(pictured, layer)
    down, across = pictured.grid
    weights = attention_map.weights[:, 0, 1:].reshape(-1, down, across)
    rows, columns = (tuple(str(number) for number in range(1, count + 1)) for count in pictured.grid)
    return AttentionMap(attention_map.layer, rows, columns, weights)


def save_picture_png(
    pictured: PictureAnswer, path: str | os.PathLike[str], *, layer: str | None = None, head: int | None = None
) -> Path:
    """Write the image next to a grey version coloured by the class token's attention."""
    weights = pick_head(over_patches(pictured, layer), head)
    height, width, _ = pictured.pixels.shape
    size = (round(width * _SIDE / max(height, width)), round(height * _SIDE / max(height, width)))
    original = Image.fromarray(np.ascontiguousarray(pictured.pixels)).resize(size, Image.Resampling.NEAREST)
    canvas = Image.new("RGB", (2 * size[0] + _GAP, size[1]), "white")
    canvas.paste(original, (0, 0))
    canvas.paste(Image.fromarray(coloured(np.asarray(original.convert("L")), weights)), (size[0] + _GAP, 0))
    write_atomically(Path(path), png_bytes(canvas))
    return Path(path)


def png_bytes(image: Image.Image) -> bytes:
    """Return an image as a PNG file."""
    data = io.BytesIO()
    image.save(data, format="PNG")
    return data.getvalue()


def coloured(
    grey: UInt8[np.ndarray, "height width"], weights: Float[np.ndarray, "rows columns"]
) -> UInt8[np.ndarray, "height width 3"]:
    """Blend a grey image with the overlay colour in proportion to the weight of each patch."""
    share = _STRONGEST * weights / (float(weights.max()) or 1.0)
    down, across = (np.arange(count) * cells // count for count, cells in zip(grey.shape, weights.shape, strict=True))
    share = share[down][:, across, None]
    return np.rint((1 - share) * grey[:, :, None] + share * _COLOUR).astype(np.uint8)
