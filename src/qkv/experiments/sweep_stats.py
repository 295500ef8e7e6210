"""Means, confidence intervals and tests of the combinations of a sweep.

The interval of a mean is Student's. Each combination is compared with the first one by Welch's two-sided test, since
models differ in how much they vary with the seed; the p-values are adjusted for the number of comparisons by Holm's
method. Runs are not paired by seed: a seed gives two models the same batches, but not related weights, and a paired
test has half the degrees of freedom.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from qkv.experiments.t_test import Interval, holm, mean_interval, welch


class Measured(Protocol):
    """The scores of a run, and its costs; no scores if it failed."""

    @property
    def seed(self) -> int: ...

    @property
    def scores(self) -> Mapping[str, float]: ...

    @property
    def parameters(self) -> int: ...

    @property
    def minutes(self) -> float: ...


@dataclass(frozen=True)
class SummaryRow:
    """One combination, measured with several seeds."""

    label: str
    values: Mapping[int, float]  # by seed
    mean: float | None = None  # None if all runs failed
    interval: Interval | None = None  # of the mean; None for fewer than two values
    difference: float | None = None  # of the mean, to that of the first row; None for the first row itself
    difference_interval: Interval | None = None
    p: float | None = None  # of equal means, adjusted; None if it is not defined
    p_unadjusted: float | None = None
    parameters: int = 0
    minutes: float = 0.0  # mean time of training


def rows_of(groups: Mapping[str, Sequence[Measured]], metric: str, confidence: float) -> list[SummaryRow]:
    """Return one row per combination; the first one is compared with each of the others."""
    values = {
        label: {run.seed: run.scores[metric] for run in runs if metric in run.scores} for label, runs in groups.items()
    }
    baseline, *others = values
    tests = {
        label: welch(list(values[label].values()), list(values[baseline].values()), confidence) for label in others
    }
    tested = {label: test.p for label, test in tests.items() if test is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    rows = []
    for label, runs in groups.items():
        measured, first = list(values[label].values()), list(values[baseline].values())
        test, ended = tests.get(label), [run for run in runs if run.scores]
        comparable = bool(measured and first) and label != baseline
        rows.append(
            SummaryRow(
                label,
                values[label],
                statistics.fmean(measured) if measured else None,
                mean_interval(measured, confidence),
                statistics.fmean(measured) - statistics.fmean(first) if comparable else None,
                None if test is None else test.interval,
                adjusted.get(label),
                tested.get(label),
                max((run.parameters for run in ended), default=0),
                statistics.fmean(run.minutes for run in ended) if ended else 0.0,
            )
        )
    return rows
