"""Captions as a page: each picture, and beside it, word by word, where it was looked at."""

import base64
import hashlib
import html
import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from qkv.runtime.files import write_atomically
from qkv.tasks.captioner import Captioned
from qkv.view.glyphs import visible
from qkv.view.picture import coloured
from qkv.view.selection import pick_head

_SIDE, _TILE = 288, 144  # pixels of the longer side of a picture, and of what was read of it for a word

_STYLE = """
  :root { color-scheme: light dark; --ink: #23262f; --quiet: #767b88; --ground: #ffffff; --line: #e7e9ef; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #e8eaf0; --quiet: #9aa0ae; --ground: #14171f; --line: #2a2f3b; }
  }
  body { margin: 2rem auto; max-width: 72rem; padding: 0 1.25rem; background: var(--ground); color: var(--ink);
         font: 16px/1.5 system-ui, sans-serif; }
  h1 { font-size: 1.25rem; margin: 0 0 1.5rem; }
  section { border-top: 1px solid var(--line); padding: 1.5rem 0; display: flex; flex-wrap: wrap; gap: 1.5rem; }
  section > div { flex: 1 1 24rem; min-width: 0; }
  h2 { font-size: 1.125rem; margin: 0; overflow-wrap: anywhere; }
  p { color: var(--quiet); margin: 0.25rem 0 1rem; overflow-wrap: anywhere; }
  ol { list-style: none; display: flex; flex-wrap: wrap; gap: 0.75rem; margin: 0; padding: 0; }
  img { display: block; border-radius: 2px; image-rendering: pixelated; max-width: 100%; }
  figure { margin: 0; }
  figcaption { font-size: 0.9375rem; margin-bottom: 0.25rem; overflow-wrap: anywhere; max-width: 144px; }
"""


def save_captions(answers: Sequence[Captioned], path: str | os.PathLike[str], *, title: str = "What was seen") -> Path:
    """Write captions and what was read for each word as one HTML file that needs no network, and no script."""
    policy = f"default-src 'none'; img-src data:; style-src {_fingerprint(_STYLE)}; base-uri 'none'; form-action 'none'"
    page = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n"
        f"<h1>{html.escape(title)}</h1>\n{''.join(map(_section, answers))}</html>\n"
    )
    write_atomically(Path(path), page.encode("utf-8", errors="replace"))
    return Path(path)


def _section(answer: Captioned) -> str:
    said = html.escape(answer.text) or "(nothing)"
    original = _img(_scaled(answer.pixels, _SIDE), f"The picture {answer.source}")
    head = f"<h2>{said}</h2><p>{html.escape(answer.source)} · score {answer.score:.3f}</p>"
    return f"<section>{original}<div>{head}{_tiles(answer)}</div></section>\n"


def _tiles(answer: Captioned) -> str:
    """A tile for each token: the picture in grey, coloured by how much was read of each place."""
    if not answer.maps:
        return ""
    small = Image.fromarray(np.ascontiguousarray(answer.pixels)).convert("L")
    grey = _scaled(np.asarray(small), _TILE)
    tiles = []
    for token, row in zip(answer.maps[0].rows, pick_head(answer.maps[0], None), strict=True):
        weights: Float[np.ndarray, "rows columns"] = row.reshape(answer.grid)
        peak = float(weights.max(initial=0.0))
        word = html.escape(visible(token.strip()) or "␣")
        image = _img(coloured(grey, weights), f"What was read for {token.strip()}; the most of one place is {peak:.2f}")
        tiles.append(f"<li><figure><figcaption>{word}</figcaption>{image}</figure></li>")
    return f"<ol>{''.join(tiles)}</ol>"


def _scaled(pixels: UInt8[np.ndarray, "height width *colours"], side: int) -> UInt8[np.ndarray, "tall wide *colours"]:
    """As large as a page shows it, every pixel a square."""
    height, width = pixels.shape[:2]
    size = (max(1, round(width * side / max(height, width))), max(1, round(height * side / max(height, width))))
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize(size, Image.Resampling.NEAREST))


def _img(pixels: UInt8[np.ndarray, "height width *colours"], words: str) -> str:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, format="PNG")
    height, width = pixels.shape[:2]
    source = base64.b64encode(data.getvalue()).decode()
    return f'<img src="data:image/png;base64,{source}" width="{width}" height="{height}" alt="{html.escape(words)}">'


def _fingerprint(style: str) -> str:
    """The hash by which a browser recognises the one style element."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"
