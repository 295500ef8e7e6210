"""Watching shows what happened and changes nothing."""

import pytest
import torch
from torch import nn

import qkv
from qkv.attention import Attend, Causal, Padding
from qkv.errors import InputError
from qkv.nn.heads import MultiHead


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHead(8, 2)

    def forward(self, x, mask=None):
        return self.attention(x, mask)[0]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleList([Layer(), Layer()])

    def forward(self, x, mask=None):
        for layer in self.encoder:
            x = layer(x, mask)
        return x


def test_the_weights_seen_are_those_behind_the_output():
    model, x = Pair(), torch.randn(2, 5, 8)
    mask = Padding(torch.tensor([5, 3])) & Causal()
    with qkv.watch(model) as seen:
        model(x, mask)
    assert list(seen) == ["encoder.0", "encoder.1"]
    heads = model.encoder[0].attention
    query, key, value = (heads._split(part) for part in heads.project(x).chunk(3, dim=-1))
    expected = qkv.attend(query, key, value, mask=mask, backend="reference", need_weights=True)
    torch.testing.assert_close(seen["encoder.0"].weights, expected.weights)
    merged = (seen["encoder.0"].weights @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(heads.output(merged), model.encoder[0](x, mask))


def test_watching_changes_no_bit_of_the_output_or_of_the_gradient():
    model, x = Pair(), torch.randn(2, 5, 8, requires_grad=True)
    plain = model(x, Causal())
    (slope,) = torch.autograd.grad(plain.sum(), x)
    with qkv.watch(model):
        watched = model(x, Causal())
        (watched_slope,) = torch.autograd.grad(watched.sum(), x)
    assert watched.equal(plain)
    assert watched_slope.equal(slope)


def test_layers_heads_and_queries_can_be_picked():
    model, x = Pair(), torch.randn(2, 5, 8)
    with qkv.watch(model) as everything:
        model(x)
    with qkv.watch(model, layers=[1], heads=[1], queries=[0, 4]) as seen:
        model(x)
    assert list(seen) == ["encoder.1"]
    assert seen["encoder.1"].weights.equal(everything["encoder.1"].weights[:, [1]][:, :, [0, 4]])
    with qkv.watch(model, layers=["encoder"]) as seen:
        model(x)
    assert len(seen) == 2


def test_steps_with_growing_keys_are_stacked_into_one_matrix():
    attend, x = Attend(), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend})) as seen:
        for length in range(1, 5):
            attend(x[:, :, length - 1 : length], x[:, :, :length], x[:, :, :length])
    expected = qkv.attend(x, x, x, mask=Causal(), need_weights=True).weights
    torch.testing.assert_close(seen["decoder"].weights, expected)


def test_queries_are_numbered_over_all_steps():
    attend, x = Attend(), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend}), queries=[1, 3]) as seen:
        for place in range(4):
            attend(x[:, :, place : place + 1], x, x)
    expected = qkv.attend(x, x, x, need_weights=True).weights
    torch.testing.assert_close(seen["decoder"].weights, expected[:, :, [1, 3]])


def test_two_passes_are_kept_apart():
    model, one, other = Pair(), torch.randn(2, 5, 8), torch.randn(1, 3, 8)
    with qkv.watch(model) as seen:
        model(one)
        model(other)
    assert [tuple(weights.shape) for weights in seen["encoder.0"].passes] == [(2, 2, 5, 5), (1, 2, 3, 3)]
    with pytest.raises(InputError, match="2 passes ran under watch"):
        _ = seen["encoder.0"].weights


def test_layers_whose_names_would_be_the_same_keep_their_whole_paths():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = Attend()
            self.attention = nn.ModuleDict({"attend": Attend()})

    with qkv.watch(nn.ModuleDict({"block": Both()})) as seen:
        pass
    assert sorted(seen) == ["block.attend", "block.attention.attend"]


def test_nothing_is_watched_after_the_block_even_if_it_fails():
    model, x = Pair(), torch.randn(1, 3, 8)
    seen = {}

    def fail_under_watch():
        with qkv.watch(model) as records:
            seen.update(records)
            model(x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_under_watch()
    before = seen["encoder.0"].weights.shape
    model(x)
    assert seen["encoder.0"].weights.shape == before


def test_a_layer_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(InputError, match=r"layers: encoder\.0, encoder\.1"), qkv.watch(Pair(), layers=["decoder"]):
        pass


def test_asking_before_anything_ran_is_answered_in_words():
    with qkv.watch(Pair()) as seen, pytest.raises(InputError, match="nothing has run"):
        _ = seen["encoder.0"].weights
