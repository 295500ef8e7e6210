"""HTML page of captions with the attention of each word over the image."""

import html
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image

from qkv.pipelines.captioner import Caption
from qkv.visualize.glyphs import clipped, visible
from qkv.visualize.image_overlay import coloured, data_url, resized
from qkv.visualize.pages.template import write_page
from qkv.visualize.selection import pick_head

_SIDE, _TILE = 288, 144  # longer side in pixels of an image and of an attention tile


def save_captions(answers: Sequence[Caption], path: str | os.PathLike[str]) -> Path:
    """Write captions and the attention of each word as one self-contained HTML file without scripts."""
    sections = "".join(map(_section, answers))
    return write_page(path, "caption_page.html", "Captions", {"captions": sections}, pictures=True)


def _section(answer: Caption) -> str:
    text = html.escape(clipped(answer.text)) or "(empty)"
    original = _img(resized(answer.pixels, _SIDE), f"Image {answer.source}")
    head = f"<h2>{text}</h2><p>{html.escape(answer.source)} · score {answer.score:.3f}</p>"
    return f"<section>{original}<div>{head}{_tiles(answer)}</div></section>\n"


def _tiles(answer: Caption) -> str:
    """Return one tile per token: the image in grey, coloured by attention weight."""
    if not answer.attention:
        return ""
    grey = resized(answer.pixels, _TILE).convert("L")
    tiles = []
    for token, row in zip(answer.attention[0].rows, pick_head(answer.attention[0], None), strict=True):
        weights: Float[np.ndarray, "rows columns"] = row.reshape(answer.grid)
        peak = float(weights.max(initial=0.0))
        word = visible(token.strip())
        image = _img(coloured(grey, weights), f"Attention for {word}; maximum weight {peak:.2g}")
        tiles.append(f"<li><figure><figcaption>{html.escape(word)}</figcaption>{image}</figure></li>")
    return f"<ol>{''.join(tiles)}</ol>"


def _img(image: Image.Image, alt: str) -> str:
    size = f'width="{image.width}" height="{image.height}"'
    return f'<img src="{data_url(image)}" {size} alt="{html.escape(alt)}">'
