"""Verdicts: pure functions from measured numbers to "supported", "mixed" or "not supported".

A claim states criteria before it is measured. Each criterion estimates one quantity with its 95 % confidence interval
over the seeds, and names the range in which the quantity must be:

    pass            the whole interval is inside the range
    fail            the whole interval is outside
    inconclusive    the interval contains a bound of the range

A claim is supported if all criteria pass, not supported if none does, and mixed otherwise.
"""

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from qkv.errors import InputError
from qkv.experiments.claims.measurements import Measurements
from qkv.experiments.t_test import Interval, mean_interval, welch

CONFIDENCE = 0.95
MIN_SEEDS = {"small": 2, "full": 3}  # of claims that depend on the seed

Verdict = Literal["supported", "mixed", "not supported"]
CriterionStatus = Literal["pass", "fail", "inconclusive"]


class Estimate(NamedTuple):
    """An estimated quantity and its confidence interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class CriterionResult:
    """The outcome of one criterion."""

    quantity: str
    low: float | None  # bounds of the required range; None: unbounded
    high: float | None
    estimate: float
    interval: tuple[float, float]
    outcome: CriterionStatus


class Criterion(ABC):
    """A quantity, and the range in which its confidence interval must be."""

    low: float | None
    high: float | None

    @property
    @abstractmethod
    def quantity(self) -> str:
        """What is estimated, in words."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the values or series that it needs."""

    @abstractmethod
    def estimate(self, measurements: Measurements) -> Estimate:
        """Estimate the quantity; raise InputError if that is not possible."""

    def evaluate(self, measurements: Measurements) -> CriterionResult:
        """Compare the interval with the range."""
        value, interval = self.estimate(measurements)
        if not all(map(math.isfinite, (value, *interval))):
            raise InputError(f"{self.quantity}: is not finite")
        outcome = outcome_of(interval, self.low, self.high)
        return CriterionResult(self.quantity, self.low, self.high, value, (interval.low, interval.high), outcome)


@dataclass(frozen=True)
class OneCondition(Criterion):
    """A quantity of one condition."""

    name: str
    low: float | None = None
    high: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class TwoConditions(Criterion):
    """A quantity that compares two conditions."""

    a: str
    b: str
    low: float | None = None
    high: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.a, self.b


@dataclass(frozen=True)
class Mean(OneCondition):
    """The mean of one condition; the interval is Student's."""

    @property
    def quantity(self) -> str:
        return self.name

    def estimate(self, measurements: Measurements) -> Estimate:
        return _mean(measurements.value(self.name))


@dataclass(frozen=True)
class Difference(TwoConditions):
    """mean(a) - mean(b); the interval is Welch's."""

    @property
    def quantity(self) -> str:
        return f"({self.a}) - ({self.b})"

    def estimate(self, measurements: Measurements) -> Estimate:
        return _difference(measurements.value(self.a), measurements.value(self.b))


@dataclass(frozen=True)
class Ratio(TwoConditions):
    """Geometric mean of a divided by that of b; the interval is Welch's, of the logarithms."""

    @property
    def quantity(self) -> str:
        return f"({self.a}) / ({self.b})"

    def estimate(self, measurements: Measurements) -> Estimate:
        logs = [_logarithms(name, measurements.value(name)) for name in (self.a, self.b)]
        value, interval = _difference(*logs)
        try:
            return Estimate(math.exp(value), Interval(*map(math.exp, interval)))
        except OverflowError:
            raise InputError(f"{self.quantity}: the interval is too wide: use more seeds") from None


@dataclass(frozen=True)
class Equal(TwoConditions):
    """Largest |a - b| over the seeds, which must be below `high`; each seed is compared with itself."""

    @property
    def quantity(self) -> str:
        return f"largest |({self.a}) - ({self.b})|"

    def estimate(self, measurements: Measurements) -> Estimate:
        pairs = zip(measurements.value(self.a), measurements.value(self.b), strict=True)
        error = max(abs(x - y) for x, y in pairs)
        return Estimate(error, Interval(error, error))


@dataclass(frozen=True)
class Exponent(OneCondition):
    """The exponent p of y = c x^p: slope of a least-squares line through log y over log x, one per seed.

    Only points with min_x <= x <= max_x are used.
    """

    min_x: float = 0.0
    max_x: float = math.inf

    @property
    def quantity(self) -> str:
        ranges = [f"from {self.min_x:g}"] * (self.min_x > 0) + [f"to {self.max_x:g}"] * (self.max_x < math.inf)
        return " ".join(["exponent of", self.name, *ranges])

    def estimate(self, measurements: Measurements) -> Estimate:
        series = measurements.curve(self.name)
        chosen = [number for number, x in enumerate(series.x) if self.min_x <= x <= self.max_x]
        if len(chosen) < 3:
            raise InputError(f"{self.quantity}: needs at least three points, not {len(chosen)}")
        x = _logarithms(self.name, [series.x[number] for number in chosen])
        curves = [_logarithms(self.name, [points[number] for number in chosen]) for points in series.values]
        return _mean([statistics.linear_regression(x, y).slope for y in curves])


@dataclass(frozen=True)
class Trend(OneCondition):
    """Spearman's rank correlation of x and y, one per seed: 1 if y always grows with x, -1 if it always falls."""

    @property
    def quantity(self) -> str:
        return f"rank correlation of {self.name} with x"

    def estimate(self, measurements: Measurements) -> Estimate:
        series = measurements.curve(self.name)
        if len(series.x) < 3:
            raise InputError(f"{self.quantity}: needs at least three points, not {len(series.x)}")
        return _mean([_rank_correlation(series.x, points) for points in series.values])


def judge(
    criteria: Sequence[Criterion], measurements: Measurements, min_seeds: int
) -> tuple[Verdict, list[CriterionResult]]:
    """Return the verdict and the result of each criterion.

    Raise InputError if there are fewer than `min_seeds` seeds, a number is missing or not finite.
    """
    measurements.check()
    if len(measurements.seeds) < min_seeds:
        raise InputError(f"{len(measurements.seeds)} seed(s) are too few for a verdict: use at least {min_seeds}")
    results = [criterion.evaluate(measurements) for criterion in criteria]
    return combine([result.outcome for result in results]), results


def combine(outcomes: Sequence[CriterionStatus]) -> Verdict:
    """Return "supported" if all outcomes are passes, "not supported" if none is, else "mixed"."""
    if not outcomes:
        raise InputError("a verdict needs at least one criterion")
    passed = [outcome == "pass" for outcome in outcomes]
    return "supported" if all(passed) else "mixed" if any(passed) else "not supported"


def outcome_of(interval: Interval, low: float | None, high: float | None) -> CriterionStatus:
    """Compare an interval with a range; an interval that touches a bound is inconclusive."""
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    if least < interval.low and interval.high < most:
        return "pass"
    return "fail" if interval.high < least or interval.low > most else "inconclusive"


def _mean(values: Sequence[float]) -> Estimate:
    mean = statistics.fmean(values)
    return Estimate(mean, mean_interval(values, CONFIDENCE) or Interval(mean, mean))


def _difference(values: Sequence[float], baseline: Sequence[float]) -> Estimate:
    difference = statistics.fmean(values) - statistics.fmean(baseline)
    test = welch(values, baseline, CONFIDENCE)  # None if neither varies
    return Estimate(difference, Interval(difference, difference) if test is None else test.interval)


def _logarithms(name: str, values: Sequence[float]) -> list[float]:
    if min(values) <= 0:
        raise InputError(f"{name}: {min(values):g} has no logarithm: ratios and exponents need positive values")
    return [math.log(value) for value in values]


def _rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    if len(set(y)) == 1:
        return 0.0  # a constant has no trend
    return statistics.correlation(_ranks(x), _ranks(y))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values have the mean of their ranks."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
