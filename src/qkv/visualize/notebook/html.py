"""Parts of HTML fragments: tables, shaded words, bars and images.

A fragment has no scripts, asks for nothing outside, and inherits the colors of the text around it, so that it suits
light and dark themes. Text is escaped, and control characters are shown.
"""

from collections.abc import Iterable, Sequence
from functools import singledispatch
from html import escape

import numpy as np
from jaxtyping import Float
from PIL import Image

from qkv.runtime.text import escape_controls
from qkv.visualize.glyphs import clipped, visible
from qkv.visualize.image_overlay import data_url

COLOR = (61, 107, 255)  # of shaded cells, as SHADE in explorer/app/timeline.js
TEXT_ALPHA = 0.5  # of the darkest shade behind text, which stays readable on it in both themes
LONGEST_CELL = 240  # characters of a cell of a table that are shown at first
SHADES = 20  # classes s0 to s20 of backgrounds behind text
RULES = """
.qkv { line-height: 1.4; overflow-x: auto; }
.qkv p { margin: 0.3em 0; }
.qkv .quiet { opacity: 0.65; font-size: 0.9em; }
.qkv .wide { overflow-x: auto; }
.qkv table { border-collapse: collapse; border: 0; margin: 0.4em 0; font-size: 0.9em; table-layout: auto; }
.qkv tr, .qkv tbody tr:nth-child(odd), .qkv tbody tr:hover { background: none !important; }
.qkv th, .qkv td { border: 0; padding: 0.15em 0.6em 0.15em 0; text-align: right; vertical-align: middle;
  white-space: nowrap; color: inherit; max-width: none; }
.qkv th { font-weight: 600; }
.qkv .text { text-align: start !important; white-space: normal; min-width: 4em;
  max-width: 40em; overflow-wrap: anywhere; }
.qkv details[open] summary { opacity: 0.5; }
.qkv .map th { font-weight: normal; padding: 0 0.4em; vertical-align: bottom; }
.qkv .map thead th { text-align: center; padding: 0.3em 0; }
.qkv .map .up { writing-mode: vertical-rl; transform: rotate(180deg); display: inline-block; }
.qkv .map td { width: 1.15em; min-width: 1.15em; height: 1.15em; padding: 0; border: 1px solid rgba(127,127,127,0.15); }
.qkv .bar { display: inline-block; height: 0.7em; background: rgba(61,107,255,0.75); }
.qkv .word { padding: 0.05em 0.15em; border-radius: 0.2em; }
.qkv .tagged { display: inline-block; text-align: center; margin: 0 0.25em 0.3em 0; }
.qkv .tagged small { display: block; opacity: 0.65; font-size: 0.75em; }
.qkv .tiles { display: flex; flex-wrap: wrap; gap: 0.6em; align-items: flex-end; }
.qkv figure { margin: 0; } .qkv figcaption { font-size: 0.85em; }
.qkv img { display: block; margin: 0; image-rendering: pixelated; }
.qkv h3 { font-size: 1em; font-weight: 600; margin: 1em 0 0.3em; }
.qkv .map.counts td { min-width: 2.2em; text-align: center; padding: 0.1em 0.3em; }
"""


class Markup(str):
    """HTML in a cell of a table, whose other cells are plain texts."""

    __slots__ = ()


@singledispatch
def to_html(result: object) -> str:
    """Return the HTML of a result."""
    raise NotImplementedError(f"{type(result).__name__} has no HTML")


def rules() -> str:
    """Return the CSS of fragments."""
    shades = (
        f".qkv .s{number} {{ background: {rgba(TEXT_ALPHA * number / SHADES)}; }}" for number in range(SHADES + 1)
    )
    return RULES + "\n".join(shades)


def fragment(*parts: str) -> str:
    """Return parts as one fragment with its style."""
    return f'<div class="qkv"><style>{rules()}</style>{"".join(parts)}</div>'


def text(value: str) -> str:
    """Escape a text, truncated if it is very long."""
    return escape(escape_controls(clipped(value), keep="\n\t"))


def folded(value: str) -> str:
    """Return the beginning of a long text, which opens to the whole text; a short text as it is."""
    if isinstance(value, Markup):
        return value
    if len(value) <= LONGEST_CELL:
        return text(value)
    return f"<details><summary>{text(value[:LONGEST_CELL])}…</summary>{text(value)}</details>"


def paragraph(*parts: str, quiet: bool = False) -> str:
    """Return a paragraph of parts, which are HTML."""
    return f'<p dir="auto"{" class=quiet" if quiet else ""}>{"".join(parts)}</p>'


def strong(value: str) -> str:
    return f"<b>{text(value)}</b>"


def shaded(word: str, share: float, title: str = "") -> str:
    """Return a word on a background that is darker for a greater share, from 0 to 1."""
    hint = f' title="{escape(title)}"' if title else ""
    return f'<span class="word {shade(share)}"{hint}>{text(word)}</span>'


def shade(share: float) -> str:
    """Return the class of a background behind text, darker for a greater share, from 0 to 1."""
    return f"s{round(SHADES * min(1.0, max(0.0, share)))}"


def rgba(alpha: float) -> str:
    return f"rgba({COLOR[0]}, {COLOR[1]}, {COLOR[2]}, {min(1.0, max(0.0, alpha)):.3f})"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Sequence[int] = (0,)) -> str:
    """Return a table of plain texts and `Markup`; the `text_columns` are aligned to the left."""

    def line(tag: str, cells: Sequence[str]) -> str:
        names = ('class="text" dir="auto"' if index in text_columns else "" for index in range(len(cells)))
        return "".join(f"<{tag} {name}>{folded(cell)}</{tag}>" for name, cell in zip(names, cells, strict=True))

    head = f"<thead><tr>{line('th', headers)}</tr></thead>" if headers else ""
    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return wide(f"<table>{head}<tbody>{body}</tbody></table>")


def wide(table: str) -> str:
    """Return a table that scrolls sideways if it does not fit."""
    return f'<div class="wide">{table}</div>'


def bars(values: Iterable[tuple[str, float]]) -> str:
    """Return labels with bars of probabilities."""
    rows = "".join(
        f'<tr><td class="text">{text(label)}</td><td>{value:.1%}</td>'
        f'<td class="text"><span class="bar" style="width: {10 * min(1.0, max(0.0, value)):.2f}em"></span></td></tr>'
        for label, value in values
    )
    return f"<table><tbody>{rows}</tbody></table>"


def heat_map(rows: Sequence[str], columns: Sequence[str], weights: Float[np.ndarray, "rows columns"]) -> str:
    """Return weights as a table of shaded cells; the darkest is the largest weight."""
    peak = float(weights.max(initial=0.0))
    upright = max((len(visible(column)) for column in columns), default=0) <= 2
    heading = "".join(f"<th>{_column_label(escape(visible(column)), upright)}</th>" for column in columns)
    body = "".join(
        f"<tr><th>{escape(visible(row))}</th>{''.join(_cell(weight, peak) for weight in values)}</tr>"
        for row, values in zip(rows, weights.tolist(), strict=True)
    )
    return (
        f'<table class="map"><thead><tr><th></th>{heading}</tr></thead><tbody>{body}</tbody></table>'
        f"{paragraph(f'darkest cell: {peak:.2f}', quiet=True)}"
    )


def _column_label(label: str, upright: bool) -> str:
    return label if upright else f'<span class="up">{label}</span>'


def _cell(weight: float, peak: float) -> str:
    return f'<td title="{weight:.3f}" style="background: {rgba(weight / (peak or 1.0))}"></td>'


def weight_image(weights: Float[np.ndarray, "rows columns"], width: int, height: int, alt: str) -> str:
    """Return weights as a small image; the most opaque pixels are the largest weights."""
    peak = float(weights.max(initial=0.0)) or 1.0
    alpha = np.rint(255 * np.clip(weights / peak, 0, 1)).astype(np.uint8)
    color = np.broadcast_to(np.array(COLOR, dtype=np.uint8), (*alpha.shape, 3))
    image = Image.fromarray(np.concatenate([color, alpha[..., None]], axis=2), "RGBA")
    if alpha.shape[0] > height or alpha.shape[1] > width:
        image = image.resize((min(width, image.width), min(height, image.height)), Image.Resampling.BOX)
    return picture(data_url(image), width, height, alt, frame=True)


def picture(url: str, width: int, height: int, alt: str, *, frame: bool = False) -> str:
    """Return an image of a data URL."""
    style = ' style="outline: 1px solid rgba(127,127,127,0.35)"' if frame else ""
    return f'<img src="{url}" width="{width}" height="{height}" alt="{escape(alt)}"{style}>'


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """Return images in a row, each below its caption."""
    parts = (f"<figure><figcaption>{text(caption)}</figcaption>{image}</figure>" for caption, image in figures)
    return f'<div class="tiles">{"".join(parts)}</div>'
