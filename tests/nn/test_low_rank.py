"""Attention of low rank: mixtures of keys and values, and what is left out of them."""

import pytest
import torch
from torch import Tensor

from qkv.attention import Causal, Padding, Prefix, Rotary, Window
from qkv.errors import InputError
from qkv.nn.heads import MultiHead
from qkv.nn.low_rank import LowRankMultiHead, Mixture

DIM, HEADS, PLACES, RANK = 12, 3, 10, 4


def made(rank: int = RANK, heads: int = 1) -> LowRankMultiHead:
    torch.manual_seed(2)
    layer = LowRankMultiHead(DIM, HEADS, Mixture(PLACES, rank, heads), Mixture(PLACES, rank, heads)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer


def some(length: int = PLACES, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_mixtures_that_are_the_keys_themselves_make_it_the_attention_it_was():
    layer = made(rank=PLACES)
    full = MultiHead(DIM, HEADS).double()
    full.load_state_dict(layer.state_dict(), strict=False)
    with torch.no_grad():
        for mixture in (layer.mix_keys, layer.mix_values):
            mixture.weight[0] = torch.eye(PLACES)
    torch.testing.assert_close(layer(some())[0], full(some())[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("places", "rank"), [(12, 4), (10, 4), (5, 5), (7, 1)])
def test_mixtures_begin_with_neighbours_and_are_as_large_as_one_of_many(places, rank):
    weight = Mixture(places, rank, heads=2).weight
    mixed = weight > 0
    assert mixed.sum(dim=1).eq(1).all()  # each place is in one mixture,
    whose = mixed[0].int().argmax(dim=0)
    assert whose.diff().ge(0).all()  # which it shares with its neighbours,
    assert int(whose.bincount().max()) - int(whose.bincount().min()) <= 1
    assert whose.bincount(minlength=rank).min() >= 1
    torch.testing.assert_close(weight.square().sum(dim=2).mean(), torch.tensor(1.0))


@pytest.mark.parametrize("heads", [1, HEADS])
def test_a_mixture_is_the_sum_over_places_that_its_matrix_says(heads):
    mixture = Mixture(PLACES, RANK, heads).double()
    x = torch.randn(2, HEADS, 7, 4, dtype=torch.float64)
    expected = torch.zeros(2, HEADS, RANK, 4, dtype=torch.float64)
    for head in range(HEADS):
        for k in range(RANK):
            for place in range(7):
                expected[:, head, k] += mixture.weight[head % heads, k, place] * x[:, head, place]
    torch.testing.assert_close(mixture(x), expected)


place = torch.arange(PLACES)
LENGTHS, LEFT = torch.tensor([6, 3]), torch.tensor([2, 7])


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        (Padding(LENGTHS), place < LENGTHS[:, None]),
        (~Prefix(LEFT), place >= LEFT[:, None]),
        (Padding(LENGTHS) & ~Prefix(1), (place < LENGTHS[:, None]) & (place >= 1)),
    ],
)
def test_what_is_hidden_is_in_no_mixture_whatever_it_holds(mask, shown):
    layer, x = made(), some()
    found, _ = layer(x, mask)
    other, _ = layer(torch.where(shown[..., None], x, x + 1e3), mask)
    torch.testing.assert_close(found[shown], other[shown], rtol=0, atol=1e-11)
    assert not layer(x)[0][shown].allclose(found[shown], atol=1e-3)


def test_a_row_of_which_all_is_hidden_reads_zeros():
    layer = made()
    found, mixtures = layer(some(), Padding(torch.tensor([10, 0])))
    assert mixtures.values[1].abs().max() == 0
    torch.testing.assert_close(found[1], layer.output.bias.expand_as(found[1]))


@pytest.mark.parametrize("mask", [Causal(), Window(2, 2)])
def test_a_mask_that_hides_a_key_from_some_queries_is_refused(mask):
    with pytest.raises(InputError, match=f"{type(mask).__name__} hides it from some"):
        made()(some(), mask)


def test_a_past_and_distances_are_refused():
    layer = made()
    _, past = layer(some())
    with pytest.raises(InputError, match="mixtures of keys have no places"):
        layer(some(), past=past)
    with pytest.raises(InputError, match="mixtures of keys have no places"):
        layer(some(), position=Rotary(4))


def test_more_places_than_were_learned_are_refused():
    with pytest.raises(InputError, match="learned of 10 places, but there are 11: shorten the input"):
        made()(some(11))
