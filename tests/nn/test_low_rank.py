"""Low-rank attention: projected keys and values, and masking."""

import pytest
import torch
from torch import Tensor

from qkv.attention import Causal, Padding, Prefix, Rotary, Window
from qkv.errors import InputError
from qkv.nn.low_rank import LengthProjection, LowRankMultiHead
from qkv.nn.multi_head import MultiHead

DIM, HEADS, LENGTH, RANK = 12, 3, 10, 4


def make_model(rank: int = RANK, heads: int = 1) -> LowRankMultiHead:
    torch.manual_seed(2)
    layer = LowRankMultiHead(
        DIM, HEADS, LengthProjection(LENGTH, rank, heads), LengthProjection(LENGTH, rank, heads)
    ).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer


def random_input(length: int = LENGTH, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_an_identity_projection_gives_full_attention():
    layer = make_model(rank=LENGTH)
    full = MultiHead(DIM, HEADS).double()
    full.load_state_dict(layer.state_dict(), strict=False)
    with torch.no_grad():
        for projection in (layer.key_projection, layer.value_projection):
            projection.weight[0] = torch.eye(LENGTH)
    torch.testing.assert_close(layer(random_input())[0], full(random_input())[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("positions", "rank"), [(12, 4), (10, 4), (5, 5), (7, 1)])
def test_the_projection_is_initialised_to_scaled_means_of_neighbours(positions, rank):
    weight = LengthProjection(positions, rank, heads=2).weight
    nonzero = weight > 0
    assert nonzero.sum(dim=1).eq(1).all()  # each position is in one projection,
    row_of = nonzero[0].int().argmax(dim=0)
    assert row_of.diff().ge(0).all()  # which it shares with its neighbours,
    assert int(row_of.bincount().max()) - int(row_of.bincount().min()) <= 1
    assert row_of.bincount(minlength=rank).min() >= 1
    torch.testing.assert_close(weight.square().sum(dim=2).mean(), torch.tensor(1.0))


@pytest.mark.parametrize("heads", [1, HEADS])
def test_a_length_projection_is_a_weighted_sum_over_positions(heads):
    projection = LengthProjection(LENGTH, RANK, heads).double()
    x = torch.randn(2, HEADS, 7, 4, dtype=torch.float64)
    expected = torch.zeros(2, HEADS, RANK, 4, dtype=torch.float64)
    for head in range(HEADS):
        for k in range(RANK):
            for position in range(7):
                expected[:, head, k] += projection.weight[head % heads, k, position] * x[:, head, position]
    torch.testing.assert_close(projection(x), expected)


position = torch.arange(LENGTH)
LENGTHS, LEFT = torch.tensor([6, 3]), torch.tensor([2, 7])


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        (Padding(LENGTHS), position < LENGTHS[:, None]),
        (~Prefix(LEFT), position >= LEFT[:, None]),
        (Padding(LENGTHS) & ~Prefix(1), (position < LENGTHS[:, None]) & (position >= 1)),
    ],
)
def test_masked_positions_do_not_affect_the_output(mask, shown):
    layer, x = make_model(), random_input()
    actual, _ = layer(x, mask)
    other, _ = layer(torch.where(shown[..., None], x, x + 1e3), mask)
    torch.testing.assert_close(actual[shown], other[shown], rtol=0, atol=1e-11)
    assert not layer(x)[0][shown].allclose(actual[shown], atol=1e-3)


def test_a_fully_masked_row_gives_zeros():
    layer = make_model()
    actual, projected = layer(random_input(), Padding(torch.tensor([10, 0])))
    assert projected.values[1].abs().max() == 0
    torch.testing.assert_close(actual[1], layer.output.bias.expand_as(actual[1]))


@pytest.mark.parametrize("mask", [Causal(), Window(2, 2)])
def test_a_mask_that_differs_between_queries_raises(mask):
    with pytest.raises(InputError, match=type(mask).__name__):
        make_model()(random_input(), mask)


def test_a_cache_or_positions_raise():
    layer = make_model()
    _, past = layer(random_input())
    with pytest.raises(InputError, match="neither"):
        layer(random_input(), past=past)
    with pytest.raises(InputError, match="neither"):
        layer(random_input(), position=Rotary(4))


def test_inputs_longer_than_max_length_raise():
    with pytest.raises(InputError, match="max_length"):
        make_model()(random_input(11))
