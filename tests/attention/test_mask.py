"""Masks: combination, materialization and device placement."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import qkv
from qkv.attention import Attend, Causal, Dense, Documents, Padding
from qkv.attention.mask import as_mask
from qkv.attention.score_shape import ScoreShape
from qkv.errors import ShapeError
from qkv.nn.multi_head import MultiHeadAttention

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


def test_a_boolean_tensor_is_a_mask_as_in_scaled_dot_product_attention():
    query, key, value = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    allowed = torch.rand(5, 5) < 0.6
    allowed[:, 0] = True
    for mask in (allowed, allowed[None, None], (torch.rand(2, 1, 5, 5) < 0.5) | torch.eye(5, dtype=torch.bool)):
        expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        torch.testing.assert_close(qkv.attend(query, key, value, mask=mask).output, expected)
        torch.testing.assert_close(Attend()(query, key, value, mask).output, expected)


def test_a_boolean_tensor_combines_with_masks_and_enters_the_layers():
    x, allowed = torch.randn(2, 5, 8), torch.rand(5, 5) < 0.7
    layer = MultiHeadAttention(8, 2)
    both = Causal() & allowed
    dense = Dense(allowed[None, None] & torch.ones(5, 5, dtype=torch.bool).tril())
    torch.testing.assert_close(layer(x, both)[0], layer(x, dense)[0])
    torch.testing.assert_close(layer(x, allowed)[0], layer(x, Dense(allowed[None, None]))[0])
    either = Causal() | allowed
    shape = ScoreShape(2, 2, 5, 5, torch.device("cpu"), None)
    assert torch.equal(either.to_dense(shape)[0, 0], allowed | torch.ones(5, 5, dtype=torch.bool).tril())


@pytest.mark.parametrize("mask", [torch.ones(3, 5, 5, dtype=torch.bool), torch.ones(5, dtype=torch.bool)])
def test_a_mask_of_another_number_of_dimensions_is_an_error_that_names_its_shape(mask):
    tensors = torch.randn(3, 2, 3, 5, 4)
    with pytest.raises(ShapeError, match="query, key"):
        qkv.attend(*tensors, mask=mask)


def test_a_float_tensor_is_not_a_mask():
    with pytest.raises(ShapeError, match="boolean"):
        as_mask(torch.zeros(5, 5))
