"""The alignment of a transcript over the log-mel spectrogram of its recording, as a PNG figure.

Both panels share the time axis. Each token is written above the spectrogram where its attention is largest.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.nn.encoders.log_mel import HOPS_PER_SECOND
from qkv.pipelines.recognizer import Segment
from qkv.visualize.glyphs import visible
from qkv.visualize.plotting import QUIET, TEXT, attention_colormap, new_figure, save_figure
from qkv.visualize.selection import caption, pick_head, pick_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH_PER_SECOND, _LEAST_WIDTH, _MOST_WIDTH = 2.2, 5.0, 18.0  # inches
_SPECTROGRAM, _ROW, _GAP = 1.6, 0.17, 0.12  # inches: height of the spectrogram and of a token, and between the panels
_LEVELS = 4  # of labels above the spectrogram, so that close tokens do not overlap


def save_speech_png(
    segment: Segment, path: str | os.PathLike[str], *, layer: str | None = None, head: int | None = None
) -> Path:
    """Plot the spectrogram of a segment above the attention of a layer (default: the first, averaged over heads)."""
    attention_map = pick_map(segment, layer)
    weights = pick_head(attention_map, head)
    seconds = len(segment.features) / HOPS_PER_SECOND
    width = min(_MOST_WIDTH, max(_LEAST_WIDTH, seconds * _WIDTH_PER_SECOND))
    rows = _ROW * len(weights)
    height = _SPECTROGRAM + _GAP + rows
    figure = new_figure(width, height)
    times = (segment.start, segment.start + seconds)
    top = figure.add_axes((0, (rows + _GAP) / height, 1, _SPECTROGRAM / height))
    top.imshow(segment.features.T, cmap="gray_r", aspect="auto", origin="lower", extent=(*times, 0, 1))
    bottom = figure.add_axes((0, 0, 1, rows / height))
    step = seconds / weights.shape[1]
    bottom.imshow(
        weights, cmap=attention_colormap(), vmin=0, aspect="auto", interpolation="nearest",
        extent=(*times, len(weights) - 0.5, -0.5),
    )  # fmt: skip
    labels = [visible(token) for token in attention_map.rows]
    nonblank = [(token.strip(), row) for token, row in zip(attention_map.rows, weights, strict=True) if token.strip()]
    for number, (token, row) in enumerate(nonblank):
        _mark(top, segment.start + (float(np.argmax(row)) + 0.5) * step, visible(token), number)
    bottom.set_yticks(range(len(labels)), labels, fontsize=7, color=TEXT, parse_math=False)
    bottom.set_xlabel(f"seconds · {caption(attention_map, head)}", fontsize=7, color=QUIET, parse_math=False)
    for axes in (top, bottom):
        axes.set_xlim(*times)
        axes.tick_params(length=0, pad=3, labelsize=7)
        axes.spines[:].set_visible(False)
    top.set_xticks([])
    top.set_yticks([])
    return save_figure(figure, path, dpi=160, pad_inches=0.2)


def _mark(axes: "Axes", time: float, token: str, number: int) -> None:
    """Draw a line through the spectrogram, with the token above it."""
    axes.axvline(time, color="#3d6bff", linewidth=0.8, alpha=0.7)
    offset = (0, 3 + 9 * (number % _LEVELS))
    note = axes.annotate(token, (time, 1), offset, "data", "offset points", ha="center", va="bottom")
    note.set(fontsize=7, color=TEXT, parse_math=False, annotation_clip=False)
