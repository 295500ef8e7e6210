"""Figures of claims, drawn from the numbers of a record."""

import io
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from qkv.errors import InputError
from qkv.experiments.claims.claim import Claim, Label, Panel, Scale
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.claims.record import ClaimRecord
from qkv.experiments.t_test import mean_interval
from qkv.runtime.files import write_atomically
from qkv.visualize.curves import PointRow
from qkv.visualize.error_bars import ErrorLine, LinePanel, PointPanel, draw_panels
from qkv.visualize.plotting import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_FIGURE_BYTES, COLORS = 100_000, 64


def save_claim_figure(claim: type[Claim], record: ClaimRecord, path: Path) -> Path:
    """Write the figure of a record as a PNG file of at most 100 KB."""
    save_figure(draw_claim(claim, record), path, dpi=120, pad_inches=0.12)
    reduced = io.BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").quantize(COLORS).save(reduced, "png", optimize=True)
    if len(reduced.getvalue()) > MAX_FIGURE_BYTES:
        raise InputError(f"{path}: larger than {MAX_FIGURE_BYTES:,} bytes: draw fewer panels or lines")
    write_atomically(path, reduced.getvalue())
    return path


def draw_claim(claim: type[Claim], record: ClaimRecord) -> "Figure":
    """Draw all panels, with 95 % confidence intervals over the seeds."""
    return draw_panels([_panel(panel, record.measurements, record.scale) for panel in claim.figure])


def _panel(panel: Panel, measurements: Measurements, scale: Scale) -> LinePanel | PointPanel:
    x_label, y_label = axis_label(panel.x_label, scale), axis_label(panel.y_label, scale)
    if panel.points:
        rows = [_row(name, measurements.value(name), panel.log_y) for name in panel.points]
        return PointPanel(panel.title, y_label, rows, panel.log_y)
    lines = [_line(name, measurements, panel.log_y) for name in panel.lines]
    return LinePanel(panel.title, x_label, y_label, lines, panel.log_x, panel.log_y)


def _row(name: str, values: Sequence[float], log: bool) -> PointRow:
    mean, low, high = mean_and_interval(values, log)
    return PointRow(label_of(name), tuple(values), mean, (low, high) if len(values) > 1 else None)


def _line(name: str, measurements: Measurements, log: bool) -> ErrorLine:
    series = measurements.curve(name)
    columns = [mean_and_interval(series.at(x), log) for x in series.x]
    mean, low, high = (tuple(column) for column in zip(*columns, strict=True))
    return ErrorLine(label_of(name), series.x, mean, low, high)


def axis_label(label: Label, scale: Scale) -> str:
    """Return the label of an axis at this scale."""
    return label if isinstance(label, str) else label[scale]


def label_of(name: str) -> str:
    """Return the condition of a name "quantity: condition"."""
    return name.partition(": ")[2] or name


def mean_and_interval(values: Sequence[float], log: bool = False) -> tuple[float, float, float]:
    """Return the mean and its confidence interval; those of the logarithms for a logarithmic axis."""
    use_log = log and min(values) > 0
    there: Callable[[float], float] = math.log if use_log else float
    back: Callable[[float], float] = math.exp if use_log else float
    shown = [there(value) for value in values]
    mean = statistics.fmean(shown)
    low, high = mean_interval(shown) or (mean, mean)
    return back(mean), back(low), back(high)
