"""Line chart of BLEU by source length."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.errors import InputError
from qkv.visualize.plotting import QUIET, TEXT, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# File metadata by format: no date, so that equal data gives equal bytes.
_METADATA: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}}
# Color-blind safe palette (Okabe and Ito 2008) without yellow, which is invisible as a line on white.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_GRID = "#e7e9ef"
_WIDTH, _HEIGHT = 7.2, 4.2  # inches
_LABEL_PITCH = 0.052  # of the axes' height; closer labels would touch


@dataclass(frozen=True)
class Line:
    """Mean, minimum and maximum over seeds of one recipe in each bucket."""

    label: str
    mean: tuple[float, ...]
    lowest: tuple[float, ...]
    highest: tuple[float, ...]


@dataclass(frozen=True)
class ByLength:
    """The lines of a figure, sorted by their last point, and the number of pairs in each bucket."""

    title: str
    buckets: tuple[str, ...]
    counts: tuple[int, ...]
    lines: tuple[Line, ...]


def save_by_length(data: ByLength, path: str | os.PathLike[str]) -> Path:
    """Plot BLEU per length bucket, with the number of pairs in each, as PNG or SVG."""
    suffix = Path(path).suffix.lower()
    if suffix not in _METADATA:
        raise InputError(f"{path}: file name must end in {' or '.join(_METADATA)}")
    if len(data.lines) > len(_COLORS):
        raise InputError(f"{len(data.lines)} lines are too many for one plot: choose at most {len(_COLORS)} recipes")
    figure = _draw(data)
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "qkv"}):  # text as text, reproducible ids
        return save_figure(figure, path, format=suffix[1:], dpi=200, pad_inches=0.15, metadata=_METADATA[suffix])


def _draw(data: ByLength) -> "Figure":
    figure = new_figure(_WIDTH, _HEIGHT)
    axes = figure.add_axes((0, 0, 1, 1))
    x = np.arange(len(data.buckets))
    for line, color, marker in zip(data.lines, _COLORS, _MARKERS, strict=False):
        axes.fill_between(x, line.lowest, line.highest, color=color, alpha=0.15, linewidth=0)
        axes.plot(x, line.mean, color=color, marker=marker, markersize=5, linewidth=1.8)
    # Start at 0 so that heights are proportional to scores.
    axes.set_ylim(0, 1.08 * max(max(line.highest) for line in data.lines) or 1.0)
    axes.set_xlim(-0.3, len(x) - 0.9)
    _label_lines(axes, data.lines)
    axes.set_xticks(x, [f"{name}\n{count:,} pairs" for name, count in zip(data.buckets, data.counts, strict=True)])
    axes.set_xlabel("words in the source", color=TEXT, labelpad=8)
    axes.set_ylabel("BLEU, lowercased, tokenized", color=TEXT, labelpad=8)
    axes.set_title(data.title, loc="left", pad=14, fontsize=11, color=TEXT, parse_math=False)
    axes.tick_params(length=0, pad=6, labelcolor=TEXT, labelsize=9)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(QUIET)
    return figure


def _label_lines(axes: "Axes", lines: Sequence[Line]) -> None:
    """Label each line at its right end, shifting labels that would overlap."""
    _, top = axes.get_ylim()
    order = sorted(range(len(lines)), key=lambda number: lines[number].mean[-1])
    height = -np.inf
    for number in order:
        end = lines[number].mean[-1] / top
        height = max(end, height + _LABEL_PITCH)
        label = axes.annotate(
            lines[number].label,
            (len(lines[number].mean) - 1, lines[number].mean[-1]),
            (1.015, height),
            xycoords="data",
            textcoords="axes fraction",
            va="center",
        )
        label.set(color=_COLORS[number], fontsize=9, parse_math=False)
