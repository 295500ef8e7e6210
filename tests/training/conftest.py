"""A recipe that trains in a second."""

import pytest

from qkv.training.recipe import Recipe, read_recipe

TINY = [
    "data.size=120",
    "model.hidden=16",
    "model.embedding=8",
    "model.dropout=0.1",
    "train.epochs=3",
    "train.batch_tokens=256",
    "train.warmup=5",
    "train.lr=0.005",
    "train.validate_every=4",
    "train.save_every=3",
    "train.valid_size=10",
]


@pytest.fixture
def tiny() -> Recipe:
    return read_recipe("dates-gru", TINY)
