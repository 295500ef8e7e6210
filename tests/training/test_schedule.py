"""Learning rate schedules."""

import pytest

from qkv.training.optimizer import learning_rate
from qkv.training.recipe import TrainConfig


def test_warmup_is_linear_and_starts_above_zero():
    config = TrainConfig(lr=1.0, warmup=3, decay="constant")
    assert [learning_rate(config, step, 0.0) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_warmup_takes_at_most_half_of_a_short_run():
    config = TrainConfig(lr=1.0, warmup=1000, decay="constant")
    rates = [learning_rate(config, step, step / 40) for step in range(40)]
    assert rates[20:] == [1.0] * 20
    assert rates[10] == pytest.approx(0.5)
    long = TrainConfig(lr=1.0, warmup=100, decay="constant")  # warmup in less than half of 400 steps is not changed
    assert [learning_rate(long, step, step / 400) for step in range(100)] == [(step + 1) / 101 for step in range(100)]


@pytest.mark.parametrize(
    ("decay", "half", "end"),
    [("constant", 1.0, 1.0), ("linear", 0.5, 0.0), ("cosine", 0.5, 0.0), ("inverse_sqrt", 0.1, 0.1)],
)
def test_decay_at_half_and_at_the_end(decay, half, end):
    config = TrainConfig(lr=1.0, warmup=0, decay=decay)
    assert learning_rate(config, 99, 0.5) == pytest.approx(half)
    assert learning_rate(config, 99, 1.0) == pytest.approx(end)
