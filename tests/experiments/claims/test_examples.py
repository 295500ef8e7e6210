"""Worked examples of the notes, against plain arithmetic."""

import math

import numpy as np
import pytest
import torch

from qkv.attention import Sinusoidal
from qkv.experiments.claims.examples import green_apple, position_digits, problem_1, sql_lookup


def test_problem_1_equals_a_computation_with_numpy():
    x = np.array(
        [[0, 0, 0], [0, -5, 1], [1, 0, 2], [0, 0, 3], [-1, 0, 4], [0, 0, 5], [-2, 0, 6], [0, 0, 7]], dtype=float
    )
    q = x @ np.array([[0.1, 0], [0, -0.1], [0, 0.1]])
    exponentials = np.exp(q @ q[-1] / math.sqrt(2))
    weights = exponentials / exponentials.sum()
    found, output, logits = problem_1.solve()
    assert found == pytest.approx(weights)
    assert output == pytest.approx(weights @ q)
    assert logits["good"] == pytest.approx((weights @ q)[0] - (weights @ q)[1])
    assert logits["bad"] == pytest.approx(-logits["good"])


def test_problem_1_has_the_printed_numbers_when_rounded():
    weights, output, logits = problem_1.solve()
    assert [abs(w - p) < 0.0006 for w, p in zip(weights, problem_1.PRINTED_WEIGHTS, strict=True)] == [True] * 8
    assert output == pytest.approx((-0.028, 0.436), abs=0.0006)
    assert logits["good"] == pytest.approx(-0.464, abs=0.0006)
    assert max(logits, key=logits.__getitem__) == "bad"


def test_printed_digits_of_positions_are_cut_sines_and_cosines():
    encoding = Sinusoidal(512).double()(2)
    assert float(encoding[1, 0]) == pytest.approx(math.sin(1.0))
    assert float(encoding[1, 2]) == pytest.approx(math.sin(10000 ** (-2 / 512)))
    for position, digits in position_digits.PRINTED.items():
        for index, printed in digits.items():
            assert -1e-9 <= float(encoding[position, index]) - printed < 1.01e-4 or index == -2


def test_a_query_for_one_key_returns_its_row_and_a_prefix_the_mean_of_its_rows():
    assert sql_lookup.row_weights("015843268901") == pytest.approx([0, 1, 0], abs=1e-9)
    assert sql_lookup.row_weights("00512317%") == pytest.approx([0.5, 0, 0.5], abs=1e-9)
    assert sql_lookup.row_weights("0%") == pytest.approx([1 / 3] * 3)  # the only digit that all keys share


def test_the_value_of_apple_is_the_printed_sum_for_any_shift_of_the_scores():
    values = torch.arange(20, dtype=torch.float64).reshape(5, 4)
    expected = 0.1 * values[0] + 0.1 * values[1] + 0.5 * values[2] + 0.1 * values[3] + 0.2 * values[4]
    for shift in (-3.0, 0.0, 2.5):
        weights, apple = green_apple.attended(values, shift)
        assert float(weights.sum()) == pytest.approx(1.0)
        assert torch.allclose(apple, expected, rtol=1e-12, atol=0)
