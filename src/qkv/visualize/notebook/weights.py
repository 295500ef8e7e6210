"""Attention maps and recordings in notebooks."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float
from torch import Tensor

from qkv.attention.backends import Explanation
from qkv.attention.spec import AttentionOutput
from qkv.attention.watch import AttentionRecord, AttentionRecording
from qkv.errors import QkvError
from qkv.pipelines.output import AttentionMap
from qkv.visualize.notebook.html import (
    fragment,
    heat_map,
    paragraph,
    strong,
    table,
    text,
    tiles,
    to_html,
    weight_image,
)
from qkv.visualize.selection import pick_head

MAX_CELLS = 2500  # larger maps are shown as an image, whose rows and columns have no labels
SCALE = "the darkest cell of each matrix is its largest weight"
MAX_TILES = 24
TILE, LARGEST = 96, 480  # sides of images in pixels


def map_html(attention_map: AttentionMap) -> str:
    """Return the average over the heads of a map."""
    weights = pick_head(attention_map, None)
    if weights.size <= MAX_CELLS:
        return heat_map(attention_map.rows, attention_map.columns, weights)
    peak = f"{len(weights)} rows and {weights.shape[1]} columns; the darkest cell is {weights.max():.2f}"
    return _image(weights, LARGEST, attention_map.layer) + paragraph(peak, quiet=True)


@to_html.register
def _(result: AttentionMap) -> str:
    heads = len(result.weights)
    title = text(result.layer) + (f", average of {heads} heads" if heads > 1 else "")
    return fragment(paragraph(title, quiet=True), map_html(result))


@to_html.register
def _(result: AttentionRecording) -> str:
    shown = list(result.items())[:MAX_TILES]
    more = [paragraph(f"and {len(result) - MAX_TILES} more layer(s)", quiet=True)] if len(result) > MAX_TILES else []
    heading = paragraph(
        f"{len(result)} layer(s); first example of the first pass, average over heads; {SCALE}", quiet=True
    )
    return fragment(heading, tiles((_caption(name, record), _thumbnail(record)) for name, record in shown), *more)


@to_html.register
def _(result: AttentionRecord) -> str:
    heading = paragraph(
        text(_caption(result.layer, result)), f"; first example of the first pass, by head; {SCALE}", quiet=True
    )
    try:
        weights = _first(result.passes[0]) if result.shapes else None
    except QkvError as error:
        return fragment(heading, paragraph(text(str(error))))
    return fragment(heading) if weights is None else fragment(heading, tiles(_by_head(weights, result.heads)))


@to_html.register
def _(result: AttentionOutput) -> str:
    heading = paragraph(text(repr(result)))
    if result.weights is None:
        return fragment(heading)
    return fragment(heading, paragraph(f"weights of the first example, by head; {SCALE}", quiet=True),
                    tiles(_by_head(_first(result.weights), None)))  # fmt: skip


@to_html.register
def _(result: Explanation) -> str:
    chosen, *_ = str(result).splitlines()
    return fragment(paragraph(strong(chosen)), table(["not on", "because"], result.reasons.items(), (0, 1)))


def _caption(name: str, record: AttentionRecord) -> str:
    return f"{name or 'attention'} {list(record.shapes[0]) if record.shapes else ''}"


def _thumbnail(record: AttentionRecord) -> str:
    if not record.shapes:
        return paragraph("nothing recorded", quiet=True)
    try:
        return _image(_first(record.passes[0]).mean(axis=0), TILE, record.layer)
    except QkvError as error:
        return paragraph(text(str(error)))


def _by_head(
    weights: Float[np.ndarray, "heads rows columns"], heads: tuple[int, ...] | None
) -> Iterator[tuple[str, str]]:
    for number, matrix in enumerate(weights[:MAX_TILES]):
        name = f"head {number if heads is None else heads[number]}"
        yield name, _image(matrix, TILE, name)


def _first(weights: Tensor) -> Float[np.ndarray, "heads rows columns"]:
    return weights[0].detach().float().cpu().numpy()


def _image(weights: Float[np.ndarray, "rows columns"], side: int, name: str) -> str:
    """Return an image of weights whose longer side is about `side` pixels, each cell at least one."""
    rows, columns = weights.shape
    scale = side / max(rows, columns, 1)
    width, height = max(4, round(columns * scale)), max(4, round(rows * scale))
    return weight_image(weights, width, height, f"Attention weights of {name}")
