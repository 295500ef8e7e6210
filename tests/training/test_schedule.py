"""The learning rate rises, then falls as its recipe says."""

import pytest

from qkv.training.recipe import TrainConfig
from qkv.training.schedule import learning_rate


def test_it_rises_in_equal_steps_from_above_zero_to_the_full_rate():
    config = TrainConfig(lr=1.0, warmup=3, decay="constant")
    assert [learning_rate(config, step, 0.0) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(
    ("decay", "half", "end"),
    [("constant", 1.0, 1.0), ("linear", 0.5, 0.0), ("cosine", 0.5, 0.0), ("inverse_sqrt", 0.1, 0.1)],
)
def test_it_falls_as_the_recipe_says(decay, half, end):
    config = TrainConfig(lr=1.0, warmup=0, decay=decay)
    assert learning_rate(config, 99, 0.5) == pytest.approx(half)
    assert learning_rate(config, 99, 1.0) == pytest.approx(end)
