"""What was read of a picture: over its patches in the terminal, and over the picture itself as a PNG."""

import io
import os
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from qkv.runtime.files import write_atomically
from qkv.tasks.answer import AttentionMap
from qkv.tasks.picture_probe import PictureAnswer
from qkv.view.selection import pick_head, pick_map

_SIDE = 448  # pixels of the longer side, each
_GAP = 16
_COLOUR = np.array((61.0, 107.0, 255.0))  # one that grey pictures do not have, as on the page
_STRONGEST = 0.85  # how much of the colour the patch has that was read most


def over_patches(pictured: PictureAnswer, layer: str | None = None) -> AttentionMap:
    """How much the class token read of each patch: one layer's map, laid out as the patches are."""
    attention_map = pick_map(pictured, layer)
    down, across = pictured.grid
    weights = attention_map.weights[:, 0, 1:].reshape(-1, down, across)
    rows, columns = (tuple(str(number) for number in range(1, count + 1)) for count in pictured.grid)
    return AttentionMap(attention_map.layer, rows, columns, weights)


def save_picture_png(
    pictured: PictureAnswer, path: str | os.PathLike[str], *, layer: str | None = None, head: int | None = None
) -> Path:
    """Write the picture, and beside it, in grey, the same coloured by what the class token read of it."""
    weights = pick_head(over_patches(pictured, layer), head)
    height, width, _ = pictured.pixels.shape
    size = (round(width * _SIDE / max(height, width)), round(height * _SIDE / max(height, width)))
    original = Image.fromarray(np.ascontiguousarray(pictured.pixels)).resize(size, Image.Resampling.NEAREST)
    both = Image.new("RGB", (2 * size[0] + _GAP, size[1]), "white")
    both.paste(original, (0, 0))
    both.paste(Image.fromarray(coloured(np.asarray(original.convert("L")), weights)), (size[0] + _GAP, 0))
    data = io.BytesIO()
    both.save(data, format="PNG")
    write_atomically(Path(path), data.getvalue())
    return Path(path)


def coloured(
    grey: UInt8[np.ndarray, "height width"], weights: Float[np.ndarray, "rows columns"]
) -> UInt8[np.ndarray, "height width 3"]:
    """Each pixel with a share of the colour that is its patch's, of the greatest weight."""
    share = _STRONGEST * weights / (float(weights.max()) or 1.0)
    down, across = (np.arange(count) * of // count for count, of in zip(grey.shape, weights.shape, strict=True))
    share = share[down][:, across, None]
    return np.rint((1 - share) * grey[:, :, None] + share * _COLOUR).astype(np.uint8)
