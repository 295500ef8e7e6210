"""Made-up numbers on both sides of the range of a criterion."""

import math

from qkv.experiments.claims.measurements import Measurements, Series
from qkv.experiments.claims.verdict import Criterion, Difference, Equal, Exponent, Mean, Ratio, Trend

SEEDS = (0, 1, 2)
NOISE = (-1e-4, 0.0, 1e-4)  # relative, of the three seeds


def numbers_for(criterion: Criterion, *, passes: bool) -> Measurements:
    """Return numbers of three seeds with which a criterion passes, or does not pass."""
    target = _inside(criterion) if passes else _outside(criterion)
    match criterion:
        case Mean(name):
            return Measurements(SEEDS, {name: _spread(target)})
        case Difference(a, b):
            return Measurements(SEEDS, {a: _spread(target), b: (0.0, 0.0, 0.0)})
        case Equal(a, b):
            return Measurements(SEEDS, {a: tuple(x + target for x in _spread(1.0)), b: _spread(1.0)})
        case Ratio(a, b):
            return Measurements(SEEDS, {a: _spread(max(target, 1e-6)), b: (1.0, 1.0, 1.0)})
        case Exponent(name):
            low = max(criterion.min_x, 1.0)
            x = tuple(low * 2.0**number for number in range(3)) if criterion.max_x == math.inf else _within(criterion)
            return Measurements(SEEDS, series={name: Series(x, tuple(tuple(v**p for v in x) for p in _spread(target)))})
        case Trend(name):
            curve = (1.0, 2.0, 3.0) if passes == (criterion.low is not None) else (3.0, 2.0, 1.0)
            return Measurements(SEEDS, series={name: Series((1.0, 2.0, 3.0), (curve,) * 3)})
    raise NotImplementedError(type(criterion).__name__)


def _within(criterion: Exponent) -> tuple[float, ...]:
    low = max(criterion.min_x, criterion.max_x / 1e3)
    return (low, math.sqrt(low * criterion.max_x), criterion.max_x)


def _spread(value: float) -> tuple[float, ...]:
    return tuple(value * (1 + noise) for noise in NOISE)


def _inside(criterion: Criterion) -> float:
    low, high = criterion.low, criterion.high
    if low is not None and high is not None:
        return (low + high) / 2
    if low is None:
        assert high is not None
        return high / 2 if high > 0 else 2 * high - 1
    return 2 * low + 1 if low >= 0 else low / 2


def _outside(criterion: Criterion) -> float:
    if criterion.high is not None:
        return 2 * criterion.high + 1 if criterion.high >= 0 else criterion.high / 2
    assert criterion.low is not None
    return criterion.low / 2 if criterion.low > 0 else 2 * criterion.low - 1
