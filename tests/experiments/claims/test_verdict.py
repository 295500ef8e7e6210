"""Verdicts from made-up numbers on both sides of each threshold."""

import math

import pytest

from qkv.errors import InputError
from qkv.experiments.claims.measurements import Measurements, Sample, Series, merge
from qkv.experiments.claims.verdict import (
    Difference,
    Equal,
    Exponent,
    Mean,
    Ratio,
    Trend,
    combine,
    judge,
    outcome_of,
)
from qkv.experiments.t_test import Interval, mean_interval, welch
from tests.experiments.claims.made_up import numbers_for

SEEDS = (0, 1, 2)
A, B = "score: with", "score: without"


def values(a, b=(1.0, 1.0, 1.0)) -> Measurements:
    return Measurements(SEEDS, {A: tuple(a), B: tuple(b)})


def curve(*points, x=(1.0, 2.0, 4.0)) -> Measurements:
    return Measurements(SEEDS, series={"time": Series(x, points * 3 if len(points) == 1 else points)})


CRITERIA = [
    Mean(A, low=0.5),
    Mean(A, high=0.5),
    Difference(A, B, low=0.0),
    Difference(A, B, low=-0.01, high=0.01),
    Ratio(A, B, low=2.0),
    Ratio(A, B, low=0.9, high=1.1),
    Equal(A, B, high=1e-6),
    Exponent("time", low=0.9, high=1.1),
    Exponent("time", low=1.8, min_x=8, max_x=64),
    Trend("time", low=0.9),
]


@pytest.mark.parametrize("criterion", CRITERIA, ids=repr)
def test_a_criterion_passes_on_one_side_of_its_threshold_only(criterion):
    assert criterion.evaluate(numbers_for(criterion, passes=True)).outcome == "pass"
    assert criterion.evaluate(numbers_for(criterion, passes=False)).outcome != "pass"


@pytest.mark.parametrize(
    ("interval", "low", "high", "outcome"),
    [
        ((1.0, 2.0), 0.9, None, "pass"),
        ((1.0, 2.0), 1.0, None, "inconclusive"),  # it contains the threshold
        ((1.0, 2.0), 1.5, None, "inconclusive"),
        ((1.0, 2.0), 2.1, None, "fail"),
        ((1.0, 2.0), None, 2.1, "pass"),
        ((1.0, 2.0), None, 2.0, "inconclusive"),
        ((1.0, 2.0), None, 0.9, "fail"),
        ((1.0, 2.0), 0.0, 3.0, "pass"),
        ((1.0, 2.0), 1.5, 3.0, "inconclusive"),
        ((0.0, 0.0), 0.0, None, "inconclusive"),
    ],
)
def test_the_interval_must_be_inside_the_range(interval, low, high, outcome):
    assert outcome_of(Interval(*interval), low, high) == outcome


def test_intervals_are_those_of_student_and_welch():
    a, b = (1.0, 1.2, 1.5), (0.8, 0.9, 0.7)
    difference = Difference(A, B, low=0.0).evaluate(values(a, b))
    expected = welch(a, b)
    assert (difference.estimate, difference.interval) == (pytest.approx(expected.difference), tuple(expected.interval))
    assert Mean(A, low=0.0).evaluate(values(a)).interval == tuple(mean_interval(a))
    ratio = Ratio(A, B, low=1.0).evaluate(values(a, b))
    logs = welch([math.log(x) for x in a], [math.log(x) for x in b])
    assert ratio.interval == pytest.approx([math.exp(bound) for bound in logs.interval])


def test_a_difference_within_the_noise_is_not_a_pass():
    result = Difference(A, B, low=0.0).evaluate(values((1.0, 1.5, 0.9), (1.0, 0.9, 1.1)))
    assert result.outcome == "inconclusive"


def test_equality_compares_each_seed_with_itself():
    assert Equal(A, B, high=0.5).evaluate(values((1.0, 2.0, 3.0), (1.0, 2.0, 3.0))).estimate == 0.0
    assert Equal(A, B, high=0.5).evaluate(values((1.0, 2.0, 3.0), (3.0, 2.0, 1.0))).outcome == "fail"


def test_exponents_are_fitted_in_the_range_of_x():
    x = (1.0, 2.0, 4.0, 8.0, 16.0)
    points = (5.0, 5.0, 16.0, 64.0, 256.0)  # quadratic from 4 on
    measured = Measurements(SEEDS, series={"time": Series(x, (points,) * 3)})
    assert Exponent("time", min_x=4).evaluate(measured).estimate == pytest.approx(2.0)
    assert Exponent("time").evaluate(measured).estimate < 1.7
    with pytest.raises(InputError, match="three points"):
        Exponent("time", min_x=8).evaluate(measured)


def test_trend_is_the_rank_correlation():
    assert Trend("time").evaluate(curve((1.0, 10.0, 11.0))).estimate == pytest.approx(1.0)
    assert Trend("time").evaluate(curve((3.0, 2.0, 1.0))).estimate == pytest.approx(-1.0)
    assert Trend("time").evaluate(curve((2.0, 2.0, 2.0))).estimate == 0.0


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (["pass", "pass"], "supported"),
        (["pass", "inconclusive"], "mixed"),
        (["pass", "fail"], "mixed"),
        (["inconclusive", "fail"], "not supported"),
        (["inconclusive"], "not supported"),
    ],
)
def test_all_criteria_must_pass(outcomes, verdict):
    assert combine(outcomes) == verdict


def test_a_verdict_needs_criteria():
    with pytest.raises(InputError):
        combine([])


class TestErrors:
    """Numbers from which there can be no verdict."""

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_values_that_are_not_finite(self, bad):
        with pytest.raises(InputError, match="finite"):
            judge([Mean(A, low=0.0)], values((1.0, bad, 1.0)), 2)
        with pytest.raises(InputError, match="finite"):
            judge([Exponent("time", low=0.0)], curve((1.0, bad, 3.0)), 2)

    def test_a_condition_that_was_not_measured(self):
        with pytest.raises(InputError, match="not measured"):
            judge([Mean("score: missing", low=0.0)], values((1.0, 1.0, 1.0)), 2)
        with pytest.raises(InputError, match="not measured"):
            judge([Exponent("memory", low=0.0)], curve((1.0, 2.0, 3.0)), 2)

    def test_nothing_measured(self):
        with pytest.raises(InputError):
            judge([Mean(A, low=0.0)], Measurements(SEEDS), 2)

    def test_too_few_seeds(self):
        few = Measurements((0, 1), {A: (1.0, 1.1)})
        assert judge([Mean(A, low=-9.0)], few, 2)[0] == "supported"
        with pytest.raises(InputError, match="seed"):
            judge([Mean(A, low=-9.0)], few, 3)

    def test_a_seed_without_a_value(self):
        with pytest.raises(InputError, match="2 values"):
            judge([Mean(A, low=0.0)], Measurements(SEEDS, {A: (1.0, 1.0)}), 2)

    def test_ratios_and_exponents_of_values_that_are_not_positive(self):
        with pytest.raises(InputError, match="logarithm"):
            judge([Ratio(A, B, low=0.0)], values((1.0, 0.0, 1.0)), 2)
        with pytest.raises(InputError, match="logarithm"):
            judge([Exponent("time", low=0.0)], curve((1.0, -2.0, 3.0)), 2)

    def test_seeds_that_measured_different_quantities(self):
        with pytest.raises(InputError, match="seed 1"):
            merge({0: Sample({A: 1.0}), 1: Sample({B: 1.0})})
        with pytest.raises(InputError, match="seed 1"):
            merge({0: Sample(series={"time": {1: 1.0}}), 1: Sample(series={"time": {2: 1.0}})})
