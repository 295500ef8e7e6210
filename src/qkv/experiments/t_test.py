"""Student's t distribution, confidence intervals of means and Welch's test.

    t_v(x):  P(T <= x) = 1 - I_{v / (v + x^2)}(v / 2, 1 / 2) / 2   for x >= 0,

where I is the regularized incomplete beta function.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

TINY = 1e-300  # instead of zero in a continued fraction
MAX_TERMS = 10_000


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class Welch(NamedTuple):
    """Welch's two-sided test of equal means: the difference of the means, its interval, and the p-value."""

    difference: float
    interval: Interval
    p: float


def regularized_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), by its continued fraction (Abramowitz and Stegun 26.5.8, evaluated as in Lentz 1976)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast below this point
        return 1.0 - regularized_beta(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1) or TINY)
    fraction = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = fraction
        for term in (even, odd):
            d, c = 1.0 / (1.0 + term * d or TINY), 1.0 + term / c or TINY
            fraction *= c * d
        if abs(fraction - before) <= 1e-16 * abs(fraction):
            break
    return math.exp(log_front) * fraction / a


def two_sided_p(t: float, freedom: float) -> float:
    """P(|T| >= |t|) for T with Student's t distribution."""
    if t * t < freedom:  # keeps the digits of a small t
        return 1.0 - regularized_beta(t * t / (freedom + t * t), 0.5, freedom / 2)
    return regularized_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def t_quantile(confidence: float, freedom: float) -> float:
    """Return t with P(|T| <= t) = confidence, by bisection of the distribution function."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > 1 - confidence:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > 1 - confidence else (low, middle)
    return (low + high) / 2


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return the confidence interval of the mean, from Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = t_quantile(confidence, len(values) - 1) * error
    return Interval(mean - half, mean + half)


def welch(values: Sequence[float], baseline: Sequence[float], confidence: float = 0.95) -> Welch | None:
    """Compare the means of two samples, which may have different variances (Welch 1947).

    None for fewer than two values in a sample, and if neither sample varies.
    """
    if min(len(values), len(baseline)) < 2:
        return None
    errors = [statistics.variance(sample) / len(sample) for sample in (values, baseline)]
    error = sum(errors)
    if error == 0.0:
        return None
    squares = [square**2 / (len(sample) - 1) for square, sample in zip(errors, (values, baseline), strict=True)]
    freedom = error**2 / sum(squares)
    difference = statistics.fmean(values) - statistics.fmean(baseline)
    half = t_quantile(confidence, freedom) * math.sqrt(error)
    p = two_sided_p(difference / math.sqrt(error), freedom)
    return Welch(difference, Interval(difference - half, difference + half), p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests, so that one of them is wrong with at most their level (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    adjusted, largest = list(p_values), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[number]))
        adjusted[number] = largest
    return adjusted
