"""Student's t distribution and tests, compared with closed forms, mpmath and published values."""

import math
import random

import pytest

from qkv.experiments.t_test import holm, mean_interval, regularized_beta, t_quantile, two_sided_p, welch

# Two-sided 95 % and 99 % quantiles, from the tables of Abramowitz and Stegun, 26.10.
QUANTILES = {1: (12.706, 63.657), 2: (4.303, 9.925), 4: (2.776, 4.604), 10: (2.228, 3.169), 120: (1.980, 2.617)}


def test_the_distribution_has_its_closed_forms_for_small_degrees_of_freedom() -> None:
    for t in (0.0, 1e-6, 0.1, 0.7, 1.0, 2.5, 40.0, 1e6):
        assert two_sided_p(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-14)
        assert two_sided_p(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-14)
    normal = math.erfc(1.96 / math.sqrt(2))
    assert two_sided_p(1.96, 1e7) == pytest.approx(normal, rel=1e-6)


def test_the_incomplete_beta_function_is_that_of_mpmath() -> None:
    mpmath = pytest.importorskip("mpmath")
    draw = random.Random(0)
    for _ in range(200):
        x, a, b = draw.random(), 10 ** draw.uniform(-1, 2.5), 10 ** draw.uniform(-1, 2.5)
        exact = float(mpmath.betainc(a, b, 0, x, regularized=True))
        assert regularized_beta(x, a, b) == pytest.approx(exact, rel=1e-10, abs=1e-14)


def test_quantiles() -> None:
    for freedom, (wide, wider) in QUANTILES.items():
        assert t_quantile(0.95, freedom) == pytest.approx(wide, abs=5e-4)
        assert t_quantile(0.99, freedom) == pytest.approx(wider, abs=5e-4)
    assert t_quantile(0.95, 2.71) == pytest.approx(3.384056195133375, rel=1e-9)  # scipy.stats.t.ppf
    assert two_sided_p(t_quantile(0.9, 3.3), 3.3) == pytest.approx(0.1, abs=1e-12)


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    draw, inside = random.Random(1), 0
    for _ in range(1000):
        interval = mean_interval([draw.gauss(5, 2) for _ in range(3)], 0.8)
        assert interval is not None
        inside += interval.low <= 5 <= interval.high
    assert 760 < inside < 840
    assert mean_interval([1.0]) is None


def test_welch_on_a_published_example() -> None:
    # scipy.stats.ttest_ind(a, b, equal_var=False) of scipy 1.17
    a = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
    b = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.8, 25.0]
    test = welch(a, b)
    assert test is not None
    assert test.p == pytest.approx(0.007619222175743653, rel=1e-9)
    assert test.difference == pytest.approx(sum(a) / 15 - sum(b) / 15)
    assert test.interval == pytest.approx((-4.954124726406107, -0.8325419402605623), rel=1e-9)
    assert welch(b, a).p == pytest.approx(test.p)
    assert welch([1.0, 2.0], [1.0]) is None
    assert welch([1.0, 1.0], [2.0, 2.0]) is None  # no variance to compare with


def test_holm_adjusts_from_the_smallest_p_value_on() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
