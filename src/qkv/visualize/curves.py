"""Learning curves, as lines of a figure or as characters, and the scores of a sweep as points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from qkv.visualize.plotting import QUIET, TEXT, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLOCKS = "▁▂▃▄▅▆▇█"
# Color-blind safe palette (Okabe and Ito 2008) without yellow, which is invisible as a line on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
STYLES = ("-", "--", ":", "-.")  # of lines beyond the number of colors
GRID = "#e7e9ef"
LOG_RATIO = 100  # of the largest and the smallest value, from which the axis is logarithmic
WIDTH, ROW_HEIGHT, CURVE_HEIGHT = 6.4, 0.34, 3.2  # inches


@dataclass(frozen=True)
class Curve:
    """Values of a metric by training step."""

    label: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class PointRow:
    """The values of one row of a point plot, their mean, and its confidence interval."""

    label: str
    values: tuple[float, ...]
    mean: float | None
    interval: tuple[float, float] | None


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Return values as block characters, the lowest as the shortest; more than `width` values are averaged."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [round(number * len(finite) / count) for number in range(count + 1)]
    groups = [finite[begin:end] for begin, end in pairwise(edges)]
    means = [sum(group) / len(group) for group in groups]
    low, span = min(means), max(means) - min(means)
    return "".join(BLOCKS[round((mean - low) / span * (len(BLOCKS) - 1)) if span else 0] for mean in means)


def draw_curves(curves: Sequence[Curve], title: str, scale: float = 1.0) -> "Figure":
    """Plot curves over the training step; `scale` is 100 for percent. Those with the same label share a color."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(WIDTH, CURVE_HEIGHT)
    axes = figure.add_axes((0, 0, 1, 1))
    labels = list(dict.fromkeys(curve.label for curve in curves))
    shown = set[str]()
    for curve in curves:
        number, label = labels.index(curve.label), curve.label if curve.label not in shown else None
        shown.add(curve.label)
        color, style = COLORS[number % len(COLORS)], STYLES[number // len(COLORS) % len(STYLES)]
        values = [value * scale for value in curve.values]
        marker = "o" if len(values) == 1 else None
        axes.plot(curve.steps, values, style, color=color, linewidth=1.5, label=label, marker=marker)
    numbers = [value for curve in curves for value in curve.values]
    if min(numbers) > 0 and max(numbers) > LOG_RATIO * min(numbers):
        axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    axes.set_xlabel("step", color=TEXT)
    _finish(axes, title)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def draw_points(panels: Sequence[tuple[str, Sequence[PointRow]]]) -> "Figure":
    """Plot the values of each row, their mean and its interval: one panel per metric, side by side."""
    count = max(len(rows) for _, rows in panels)
    figure = new_figure(WIDTH, 0.4 + ROW_HEIGHT * count)
    gap = 0.06
    width = (1 - gap * (len(panels) - 1)) / len(panels)
    for number, (title, rows) in enumerate(panels):
        axes = figure.add_axes((number * (width + gap), 0, width, 1))
        for height, row in enumerate(rows):
            axes.plot(row.values, [height] * len(row.values), "o", color=QUIET, markersize=5, markerfacecolor="none")
            if row.interval is not None:
                axes.plot(row.interval, [height, height], color=COLORS[0], linewidth=1.5, marker="|", markersize=7)
            if row.mean is not None:
                axes.plot([row.mean], [height], "D", color=COLORS[0], markersize=5)
        labels = [row.label for row in rows] if number == 0 else [""] * len(rows)
        for label in axes.set_yticks(range(len(rows)), labels):
            label.label1.set_parse_math(False)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.margins(x=0.06)
        _finish(axes, title)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
    return figure


def _finish(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=TEXT, parse_math=False)
    axes.tick_params(which="both", length=0, pad=5, labelcolor=TEXT, labelsize=9)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(QUIET)
