"""`qkv.watch` on torch.nn.MultiheadAttention, compared with the weights that it returns itself."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import qkv
from qkv.attention.layers import require_module
from qkv.errors import InputError

PADDING = torch.tensor([[False, False, False, True], [False] * 4])


@pytest.mark.parametrize("need_weights", [True, False])
def test_weights_of_a_layer_equal_those_that_it_returns_and_its_result_is_unchanged(need_weights):
    layer, states = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 4, 8)
    _, expected = layer(states, states, states, PADDING, average_attn_weights=False)
    before = layer(states, states, states, PADDING, need_weights)
    with qkv.watch(layer) as seen:
        output, weights = layer(states, states, states, PADDING, need_weights)
    torch.testing.assert_close(output, before[0])
    torch.testing.assert_close(weights, before[1])
    torch.testing.assert_close(seen["attention"].weights, expected)
    one = torch.randn(3, 8)
    with qkv.watch(layer, heads=[1]) as seen:
        layer(one, one, one)
    assert seen["attention"].weights.shape == (1, 1, 3, 3)


@pytest.mark.parametrize("training", [True, False])
@torch.no_grad()
def test_an_encoder_is_watched_with_padding_and_in_both_modes(training):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.5 if training else 0.0)
    model, states = nn.TransformerEncoder(layer, 2).train(training), torch.randn(2, 4, 8)
    before = model(states, src_key_padding_mask=PADDING)
    with qkv.watch(model) as seen:
        after = model(states, src_key_padding_mask=PADDING)
        model(states)
    assert [*seen] == ["layers.0.self_attn", "layers.1.self_attn"]
    weights, _ = seen["layers.1.self_attn"].passes
    assert weights.shape == (2, 2, 4, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 4))  # before dropout
    assert (weights[0, :, :, 3] == 0).all()
    assert all(part.training == training for part in model.modules())
    assert torch.backends.mha.get_fastpath_enabled()
    assert not layer.self_attn._forward_hooks
    if not training:
        torch.testing.assert_close(after[~PADDING], before[~PADDING], rtol=1e-4, atol=1e-5)


def test_layers_are_selected_by_name():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    with qkv.watch(model, layers="decoder.layers.0.multihead_attn") as seen:
        model(torch.randn(1, 5, 8), torch.randn(1, 3, 8))
    assert {name: record.shapes for name, record in seen.items()} == {"decoder.layers.0.multihead_attn": [(1, 2, 3, 5)]}


def test_what_has_no_attention_layer_is_named():
    with pytest.raises(InputError, match="not int"):
        require_module(5, "watch")
    with pytest.raises(InputError, match="pass its"):
        require_module(SimpleNamespace(model=nn.Linear(2, 2)), "watch")
    with pytest.raises(InputError, match="Linear"), qkv.watch(nn.Linear(2, 2)):
        pass
    with pytest.raises(InputError, match="head"), qkv.watch(nn.MultiheadAttention(8, 2), heads=[2]):
        pass


@pytest.mark.parametrize("batch_first", [True, False])
@torch.no_grad()
def test_ablated_heads_contribute_nothing_to_the_output_of_a_layer(batch_first):
    layer, states = nn.MultiheadAttention(8, 2, batch_first=batch_first).eval(), torch.randn(2, 4, 8)
    rows = states if batch_first else states.transpose(0, 1)
    _, weights = layer(states, states, states, average_attn_weights=False)
    value = (rows @ layer.in_proj_weight[16:].T + layer.in_proj_bias[16:]).unflatten(-1, (2, 4)).transpose(1, 2)
    heads = (weights @ value)[:, :1].transpose(1, 2).flatten(2)  # of head 0 only
    expected = heads @ layer.out_proj.weight[:, :4].T + layer.out_proj.bias
    keys = [*layer.state_dict()]
    with qkv.ablate(layer, "attention", [1]), qkv.watch(layer) as seen:
        output, _ = layer(states, states, states)
        assert [*layer.state_dict()] == keys
    torch.testing.assert_close(output if batch_first else output.transpose(0, 1), expected)
    torch.testing.assert_close(seen["attention"].weights, weights)


@torch.no_grad()
def test_ablations_of_an_encoder_accumulate_and_are_restored_in_any_order():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 4, 16, batch_first=True), 2).eval()
    states = torch.randn(2, 4, 8)

    def run():
        return encoder(states, src_key_padding_mask=PADDING)[~PADDING]

    with qkv.ablate(encoder, 0, [0, 1]):
        both = run()
    before = run()
    first = qkv.ablate(encoder, 0, [0])
    second = qkv.ablate(encoder, 0, [1])
    torch.testing.assert_close(run(), both)
    first.restore()
    assert not torch.allclose(run(), both)
    second.restore()
    torch.testing.assert_close(run(), before)
    assert torch.backends.mha.get_fastpath_enabled()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in encoder.modules())


def test_a_layer_is_intact_after_a_call_that_fails_while_it_is_ablated():
    layer, states = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 4, 8)
    before = layer(states, states, states)[0]
    with qkv.ablate(layer, "attention", [1]), pytest.raises(AssertionError):
        layer(states[..., :4], states, states)
    torch.testing.assert_close(layer(states, states, states)[0], before)
    with pytest.raises(InputError, match="head 2"):
        qkv.ablate(layer, "attention", [2])


def test_layers_of_qkv_and_of_pytorch_are_watched_in_one_model():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = qkv.attention.Attend()
            self.second = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            h = self.first(x[:, None], x[:, None], x[:, None]).output[:, 0]
            return self.second(h, x, x)[0]

    model = Mixed()
    with qkv.watch(model) as seen:
        model(torch.randn(2, 4, 8))
        model(torch.randn(2, 3, 8))
    shapes = {"first": [(2, 1, 4, 4), (2, 1, 3, 3)], "second": [(2, 2, 4, 4), (2, 2, 3, 3)]}
    assert {name: record.shapes for name, record in seen.items()} == shapes
