"""95 % confidence intervals of metrics over the examples of a test set."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Z_95 = 1.959964  # 97.5 % quantile of the normal distribution
MIN_RESAMPLED, RESAMPLES = 10, 1000  # fewest examples, and number of samples
SEED = 12345  # that of sacrebleu


class Interval(NamedTuple):
    """A confidence interval from bootstrap resampling of the examples."""

    low: float
    high: float

    @property
    def method(self) -> str:
        """How it was estimated, in reports."""
        return "bootstrap resampling"


class WilsonInterval(Interval):
    """A confidence interval of a proportion (Wilson 1927)."""

    @property
    def method(self) -> str:
        return "Wilson"


def proportion_interval(count: int, total: int) -> WilsonInterval:
    """Return the interval of a proportion of independent examples (Wilson 1927).

    (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    """
    share, z2 = count / total, Z_95**2
    center = share + z2 / (2 * total)
    half = Z_95 * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    scale = 1 + z2 / total
    return WilsonInterval(max(0.0, (center - half) / scale), min(1.0, (center + half) / scale))


def percentile_interval(scores: Sequence[float]) -> Interval:
    """Return the middle 95 % of the scores of bootstrap resamples."""
    low, high = np.percentile(scores, (2.5, 97.5)).tolist()
    return Interval(low, high)


def ratio_interval(parts: Sequence[int], wholes: Sequence[int]) -> Interval | None:
    """Return the interval of sum(parts) / sum(wholes), with a part and a whole per example; None for a few examples."""
    if len(parts) < MIN_RESAMPLED or not sum(wholes):
        return None
    examples, generator = np.array([parts, wholes], dtype=float), np.random.default_rng(SEED)
    sums = [examples[:, generator.integers(0, len(parts), len(parts))].sum(axis=1).tolist() for _ in range(RESAMPLES)]
    return percentile_interval([part / whole for part, whole in sums if whole])
