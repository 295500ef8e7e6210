"""How costs grow with the length: fitted exponents, and the range of lengths where the predicted one holds."""

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from qkv.experiments.claims.measurements import Measurements, Series, Table
from qkv.experiments.claims.verdict import Exponent

HEADERS = ("cost", "layer", "predicted exponent", "measured", "95 % interval", "from", "to", "holds from", "to")


def exponent_table(
    title: str, measurements: Measurements, predicted: dict[str, float], min_x: float, tolerance: float
) -> Table:
    """Return the measured exponents of series, beside those that are predicted.

    The names of the series are "cost: layer". Exponents are fitted to the points from `min_x` on. The predicted one
    holds in the longest range of x in which the slope between neighboring points is within `tolerance` of it.
    """
    rows = []
    for name, expected in predicted.items():
        series = measurements.curve(name)
        value, interval = Exponent(name, min_x=min_x).estimate(measurements)
        fitted = [x for x in series.x if x >= min_x]
        cost, _, layer = name.partition(": ")
        holds = [f"{x:,g}" for x in range_of_exponent(series, expected, tolerance)] or ["nowhere", ""]
        rows.append(
            (cost, layer, f"{expected:g}", f"{value:.2f}", f"{interval.low:.2f} to {interval.high:.2f}",
             f"{fitted[0]:,g}", f"{fitted[-1]:,g}", *holds)
        )  # fmt: skip
    return Table(title, HEADERS, tuple(rows))


def range_of_exponent(series: Series, exponent: float, tolerance: float) -> tuple[float, ...]:
    """Return the first and last x of the longest range where all slopes are within `tolerance`; () if there is none."""
    slopes = local_slopes(series)
    longest: tuple[int, int] = (0, 0)
    first = 0
    for last, slope in enumerate(slopes, start=1):
        if abs(slope - exponent) > tolerance:
            first = last
        elif last - first >= longest[1] - longest[0]:  # the longer x of two ranges of equal length
            longest = (first, last)
    return () if longest == (0, 0) else (series.x[longest[0]], series.x[longest[1]])


def local_slopes(series: Series) -> list[float]:
    """Return the exponent between each pair of neighboring points, from the geometric mean over the seeds."""
    y = [statistics.fmean(map(math.log, series.at(x))) for x in series.x]
    points: Sequence[tuple[float, float]] = list(zip(map(math.log, series.x), y, strict=True))
    return [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(points)]
