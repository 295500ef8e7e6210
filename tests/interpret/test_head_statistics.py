"""Statistics of heads against plain loops and known heads."""

import math

import numpy as np
import pytest

from qkv.interpret.head_statistics import head_statistics


def test_statistics_equal_plain_loops() -> None:
    weights = np.random.default_rng(0).dirichlet(np.full(7, 0.3), size=5)
    entropy = distance = total = mean_i = mean_j = 0.0
    for i in range(5):
        for j in range(7):
            w = weights[i, j]
            entropy -= w * math.log2(w) / 5 if w > 0 else 0.0
            distance += w * abs((i + 0.5) * 7 / 5 - 0.5 - j) / 5
            total += w
            mean_i += w * i
            mean_j += w * j
    mean_i, mean_j = mean_i / total, mean_j / total
    sums = [0.0, 0.0, 0.0]
    for i in range(5):
        for j in range(7):
            x, y = i - mean_i, j - mean_j
            sums = [s + weights[i, j] * v for s, v in zip(sums, (x * y, x * x, y * y), strict=True)]
    found = head_statistics(weights)
    assert found.peak == pytest.approx(weights.max())
    assert found.entropy == pytest.approx(entropy)
    assert found.distance == pytest.approx(distance)
    assert found.diagonality == pytest.approx(sums[0] / math.sqrt(sums[1] * sums[2]))


def test_known_heads_have_known_statistics() -> None:
    diagonal, uniform = head_statistics(np.eye(8)), head_statistics(np.full((8, 8), 1 / 8))
    assert (diagonal.entropy, diagonal.distance) == (0.0, 0.0)
    assert diagonal.diagonality == pytest.approx(1.0)
    assert uniform.entropy == pytest.approx(3.0)
    assert uniform.diagonality == pytest.approx(0.0, abs=1e-9)
    assert head_statistics(np.eye(8)[::-1]).diagonality == pytest.approx(-1.0)
    previous = np.eye(8, k=-1)
    assert head_statistics(previous).distance == pytest.approx(7 / 8)


def test_statistics_that_are_undefined_are_nan() -> None:
    assert math.isnan(head_statistics(np.zeros((3, 3))).diagonality)
    assert math.isnan(head_statistics(np.ones((1, 1))).diagonality)
    assert math.isnan(head_statistics(np.ones((0, 4))).entropy)
