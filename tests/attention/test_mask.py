"""Masks are values: they combine, and become tensors late."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.attention import Causal, Dense, Documents, Padding
from qkv.attention.extent import Extent

EXTENT = Extent(batch=2, heads=1, queries=3, keys=4, device=torch.device("cpu"))


def full(mask):
    return mask.materialise(EXTENT).expand(2, 1, 3, 4)


def test_padding_hides_the_keys_beyond_each_length():
    assert full(Padding(torch.tensor([4, 1])))[:, 0, 0].tolist() == [[True] * 4, [True, False, False, False]]


@given(st.integers(0, 2**16))
def test_and_or_not_are_those_of_logic(seed):
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.rand(2, 1, 3, 4, generator=generator) > 0.5 for _ in range(2))
    assert full(Dense(left) & Dense(right)).equal(left & right)
    assert full(Dense(left) | Dense(right)).equal(left | right)
    assert full(~Dense(left)).equal(~left)
    assert full(~(Dense(left) & ~Dense(right)) | Causal()).equal(~(left & ~right) | full(Causal()))


def test_a_mask_says_what_it_is():
    assert repr(Causal()) == "Causal()"
    assert "Causal()" in repr(Causal() & Padding(torch.tensor([1])))


def test_a_mask_moves_with_all_it_holds():
    lengths, ids = torch.tensor([1, 2]), torch.zeros(2, 3, dtype=torch.long)
    moved = (Causal() & ~Padding(lengths) | Documents(ids)).on(torch.device("meta"))
    assert moved.left.right.mask.lengths.device.type == "meta"
    assert moved.right.ids.device.type == "meta"
    assert moved.left.left == Causal()
