"""Replaced attention weights: the output is weights @ value, in one call and step by step."""

import pytest
import torch
from torch import nn

import qkv
from qkv.attention import Attend, Causal, Padding, replace_weights
from qkv.errors import InputError, ShapeError
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.nn.multi_head import MultiHeadAttention


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(12, 3)

    def forward(self, x):
        return self.attention(x)[0]


def test_output_is_the_product_of_weights_and_values():
    torch.manual_seed(0)
    layer, x, weights = Layer(), torch.randn(2, 5, 12), torch.rand(2, 3, 5, 5)
    value = layer.attention.qkv_proj(x).chunk(3, dim=-1)[2].unflatten(-1, (3, 4)).transpose(1, 2)
    expected = layer.attention.out_proj((weights @ value).transpose(1, 2).flatten(2))
    before = layer(x)
    with replace_weights(layer, "", weights), qkv.watch(layer) as records:
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(layer(x), expected)  # each pass starts at the first row
    assert all(recorded.equal(weights) for recorded in records[""].passes)
    assert layer(x).equal(before)


def test_rows_are_taken_step_by_step():
    torch.manual_seed(0)
    model = RNNSeq2Seq(RNNSeq2SeqConfig(source_vocab_size=9, target_vocab_size=7, hidden_dim=8, embedding_dim=4)).eval()
    source, target = torch.randint(9, (2, 5)), torch.randint(7, (2, 4))
    with torch.no_grad(), qkv.watch(model) as records:
        expected = model(source, target)
    weights = records["decoder"].weights
    assert weights.shape == (2, 1, 4, 5)
    with torch.no_grad(), replace_weights(model, "decoder", weights):
        torch.testing.assert_close(model(source, target), expected)
    changed = weights.clone()
    changed[:, :, 2] = changed[:, :, 2].roll(1, dims=-1)
    with torch.no_grad(), replace_weights(model, "decoder", changed):
        other = model(source, target)
    torch.testing.assert_close(other[:, :2], expected[:, :2])
    assert not other[:, 2].allclose(expected[:, 2])


def test_gradients_reach_the_weights():
    attend, value = Attend(heads=1), torch.randn(1, 1, 3, 4)
    weights = torch.rand(1, 1, 2, 3, requires_grad=True)
    with replace_weights(attend, "", weights):
        output = attend(torch.randn(1, 1, 2, 4), torch.randn(1, 1, 3, 4), value).output
    (gradient,) = torch.autograd.grad(output.sum(), weights)
    torch.testing.assert_close(gradient, value.sum(-1)[:, :, None].expand(1, 1, 2, 3))


@pytest.mark.parametrize("mask", [Padding(torch.tensor([2])), Causal()])
def test_masked_keys_have_no_weight(mask):
    attend, x = Attend(heads=1), torch.randn(1, 1, 3, 4)
    weights = torch.rand(1, 1, 3, 3)
    allowed = torch.tensor([[1.0, 1, 0]] * 3) if isinstance(mask, Padding) else torch.ones(3, 3).tril()
    with replace_weights(attend, "", weights):
        torch.testing.assert_close(attend(x, x, x, mask).output, (weights * allowed) @ x)


def test_a_named_backend_does_not_prevent_it():
    attend, x, weights = Attend(heads=1, backend="sdpa"), torch.randn(1, 1, 3, 4), torch.rand(1, 1, 3, 3)
    with replace_weights(attend, "", weights):
        torch.testing.assert_close(attend(x, x, x).output, weights @ x)


def test_wrong_shapes_and_layers_are_errors():
    layers = nn.Sequential(Layer(), Layer())
    x = torch.randn(2, 5, 12)
    with replace_weights(layers, 0, torch.rand(2, 3, 5, 4)), pytest.raises(ShapeError):
        layers(x)
    with replace_weights(layers, 0, torch.rand(1, 3, 4, 5)), pytest.raises(ShapeError, match="queries"):
        layers(x)
    with replace_weights(layers, 0, torch.rand(1, 3, 5, 5)), pytest.raises(InputError, match="already"):  # noqa: SIM117
        with replace_weights(layers, 0, torch.rand(1, 3, 5, 5)):
            pass
    with pytest.raises(InputError, match="matches"), replace_weights(Both(), "part", torch.rand(1, 3, 5, 5)):
        pass


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(Layer(), Layer())
