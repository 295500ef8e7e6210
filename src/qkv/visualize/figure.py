"""Attention maps as PNG figures."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from qkv.errors import InputError
from qkv.pipelines.output import Answer
from qkv.visualize.glyphs import visible
from qkv.visualize.plotting import QUIET, TEXT, attention_colormap, new_figure, save_figure
from qkv.visualize.selection import caption, pick_head, pick_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_CELL = 0.26  # inches, reduced to keep the figure below its maximum size
_LONGEST_SIDE = 16.0
_SHORTEST_SIDE = 0.8
_POINTS_PER_INCH = 72
_LEAST_LABEL_PITCH = 6.5  # points; closer labels would overlap, so some are omitted
_LONGEST_LABEL = 24
# Fallback fonts, if installed, for scripts that matplotlib's default font lacks.
_FALLBACK_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans SC", "WenQuanYi Zen Hei", "PingFang SC", "Hiragino Sans",
    "Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "Noto Sans Devanagari", "Noto Sans Thai", "Arial Unicode MS",
)  # fmt: skip


def save_png(
    answer: Answer, path: str | os.PathLike[str], *, layer: str | None = None, head: int | None = None
) -> Path:
    """Plot the attention of a layer (default: the first, averaged over heads) as a PNG."""
    attention_map = pick_map(answer, layer)
    weights = pick_head(attention_map, head)
    if weights.size == 0:
        raise InputError(f"layer {attention_map.layer!r} has no tokens to draw")
    figure = _draw(weights, attention_map.rows, attention_map.columns, caption(attention_map, head))
    return save_figure(figure, path, dpi=200, pad_inches=0.25)


def _draw(
    weights: Float[np.ndarray, "rows columns"],
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    caption: str,
) -> "Figure":
    cell = min(_CELL, _LONGEST_SIDE / max(weights.shape))
    height, width = (max(_SHORTEST_SIDE, cell * count) for count in weights.shape)
    figure = new_figure(width, height)
    # The axes fill the figure; labels lie outside and are included by the tight bounding box.
    axes = figure.add_axes((0, 0, 1, 1))
    peak = float(weights.max()) or 1.0
    image = axes.imshow(weights, cmap=attention_colormap(), vmin=0, vmax=peak, aspect="auto", interpolation="nearest")
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=4)
    axes.spines[:].set_visible(False)
    _label(axes.xaxis, columns, pitch=width / len(columns) * _POINTS_PER_INCH, along_top=True)
    _label(axes.yaxis, rows, pitch=height / len(rows) * _POINTS_PER_INCH, along_top=False)
    if cell == _CELL:
        _rule(axes, weights.shape)
    bar = axes.inset_axes((1 + 0.16 / width, 1 - min(1.2, height) / height, 0.07 / width, min(1.2, height) / height))
    figure.colorbar(image, cax=bar, ticks=[0, peak], format="%.2g")
    bar.tick_params(length=0, pad=3, labelsize=7, labelcolor=QUIET)
    bar.spines[:].set_visible(False)
    note = axes.annotate(caption, (0, 0), (0, -8), "axes fraction", "offset points", va="top")
    note.set(fontsize=7, color=QUIET, parse_math=False)
    return figure


def _label(axis: "Axis", tokens: tuple[str, ...], *, pitch: float, along_top: bool) -> None:
    """Label an axis with the tokens, skipping some if they would overlap."""
    every = math.ceil(_LEAST_LABEL_PITCH / pitch)
    texts = [visible(token) for token in tokens[::every]]
    texts = [text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…" for text in texts]
    # Tokens such as "$" must not start math text.
    axis.set_ticks(range(0, len(tokens), every), texts, parse_math=False)
    # Along the top, characters are upright (except rare long tokens) and words are rotated.
    words = sum(len(text) > 2 for text in texts) > len(texts) / 3
    for text, label in zip(texts, axis.get_ticklabels(), strict=True):
        label.set(fontsize=min(10.0, every * pitch * 0.75), color=TEXT, fontfamily=_fonts())
        label.set_rotation(90 if along_top and (words or len(text) > 2) else 0)


def _rule(axes: "Axes", shape: tuple[int, ...]) -> None:
    """Draw thin white lines between the cells."""
    rows, columns = shape
    axes.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, color="white", linewidth=0.8)
    axes.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, color="white", linewidth=0.8)


def _fonts() -> list[str]:
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in _FALLBACK_FONTS if name in installed)]
