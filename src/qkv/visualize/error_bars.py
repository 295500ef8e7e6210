"""Plots of measured quantities with error bars: lines over a variable, and points by condition, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.visualize.curves import COLORS, GRID, STYLES, PointRow
from qkv.visualize.plotting import QUIET, TEXT, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PANEL_WIDTH, PANEL_HEIGHT, ROW_HEIGHT = 4.0, 3.0, 0.42  # inches
PLAIN_RATIO = 1000  # of the bounds of a logarithmic axis, below which its labels are plain numbers
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class ErrorLine:
    """A line with an error bar at each point."""

    label: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class LinePanel:
    """Lines over one variable."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[ErrorLine]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class PointPanel:
    """The values of each condition, their mean, and its interval."""

    title: str
    label: str
    rows: Sequence[PointRow]
    log: bool = False


def draw_panels(panels: Sequence[LinePanel | PointPanel]) -> "Figure":
    """Draw panels side by side: three in a row, or two if there are four."""
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    only_points = all(isinstance(panel, PointPanel) for panel in panels)
    most = max((len(panel.rows) for panel in panels if isinstance(panel, PointPanel)), default=1)
    height = min(PANEL_HEIGHT, 0.9 + ROW_HEIGHT * most) if only_points else PANEL_HEIGHT
    figure = new_figure(PANEL_WIDTH * columns, height * rows)
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        if isinstance(panel, LinePanel):
            _draw_lines(axes, panel)
        else:
            _draw_points(axes, panel)
        _finish(axes, panel.title)
    figure.tight_layout(w_pad=2.0, h_pad=2.0)
    return figure


def _draw_lines(axes: "Axes", panel: LinePanel) -> None:
    for number, line in enumerate(panel.lines):
        errors = [
            [max(mean - low, 0.0) for mean, low in zip(line.mean, line.low, strict=True)],
            [max(high - mean, 0.0) for mean, high in zip(line.mean, line.high, strict=True)],
        ]
        axes.errorbar(
            line.x, line.mean, yerr=errors, label=line.label, color=COLORS[number % len(COLORS)],
            linestyle=STYLES[number // len(COLORS) % len(STYLES)], marker=MARKERS[number % len(MARKERS)],
            markersize=4, linewidth=1.4, elinewidth=1.0, capsize=2.5,
        )  # fmt: skip
    if panel.log_x:
        axes.set_xscale("log")
        x = sorted({x for line in panel.lines for x in line.x})
        if len(x) <= 8:
            axes.set_xticks(x, [f"{value:g}" for value in x])
            axes.minorticks_off()
    if panel.log_y:
        axes.set_yscale("log")
        _log_ticks(axes.yaxis)
    axes.set_xlabel(panel.x_label, color=TEXT, fontsize=9)
    axes.set_ylabel(panel.y_label, color=TEXT, fontsize=9)
    axes.grid(color=GRID, linewidth=0.8)
    if len(panel.lines) > 1:
        for text in axes.legend(fontsize=8, framealpha=0.8, edgecolor="none").get_texts():
            text.set_parse_math(False)


def _draw_points(axes: "Axes", panel: PointPanel) -> None:
    for height, row in enumerate(panel.rows):
        axes.plot(row.values, [height] * len(row.values), "o", color=QUIET, markersize=5, markerfacecolor="none")
        if row.interval is not None:
            axes.plot(row.interval, [height, height], color=COLORS[0], linewidth=1.5, marker="|", markersize=7)
        if row.mean is not None:
            axes.plot([row.mean], [height], "D", color=COLORS[0], markersize=5)
    for label in axes.set_yticks(range(len(panel.rows)), [row.label for row in panel.rows]):
        label.label1.set_parse_math(False)
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    if panel.log:
        axes.set_xscale("log")
        _log_ticks(axes.xaxis)
    axes.margins(x=0.08)
    axes.set_xlabel(panel.label, color=TEXT, fontsize=9)
    axes.grid(axis="x", color=GRID, linewidth=0.8)


def _log_ticks(axis: "Axis") -> None:
    """Draw few ticks, with plain numbers if the range is small."""
    from matplotlib.ticker import LogFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(numticks=6))
    if low >= 1 and high < PLAIN_RATIO * low:
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 1)))
    else:
        axis.set_minor_formatter(NullFormatter())


def _finish(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=TEXT, parse_math=False)
    axes.tick_params(which="both", length=0, pad=4, labelcolor=TEXT, labelsize=8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(QUIET)
