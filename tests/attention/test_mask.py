"""Masks: combination, materialization and device placement."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.attention import Causal, Dense, Documents, Padding
from qkv.attention.score_shape import ScoreShape

SHAPE = ScoreShape(batch=2, heads=1, queries=3, keys=4, device=torch.device("cpu"))


def full(mask):
    return mask.to_dense(SHAPE).expand(2, 1, 3, 4)


def test_padding_masks_keys_beyond_each_length():
    assert full(Padding(torch.tensor([4, 1])))[:, 0, 0].tolist() == [[True] * 4, [True, False, False, False]]


@given(st.integers(0, 2**16))
def test_and_or_not_match_boolean_operations(seed):
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.rand(2, 1, 3, 4, generator=generator) > 0.5 for _ in range(2))
    assert full(Dense(left) & Dense(right)).equal(left & right)
    assert full(Dense(left) | Dense(right)).equal(left | right)
    assert full(~Dense(left)).equal(~left)
    assert full(~(Dense(left) & ~Dense(right)) | Causal()).equal(~(left & ~right) | full(Causal()))


def test_repr_shows_the_composition():
    assert repr(Causal()) == "Causal()"
    assert "Causal()" in repr(Causal() & Padding(torch.tensor([1])))


def test_to_moves_all_tensors():
    lengths, ids = torch.tensor([1, 2]), torch.zeros(2, 3, dtype=torch.long)
    moved = (Causal() & ~Padding(lengths) | Documents(ids)).to(torch.device("meta"))
    assert moved.left.right.mask.lengths.device.type == "meta"
    assert moved.right.ids.device.type == "meta"
    assert moved.left.left == Causal()
