"""Quantized layers: values, ties, dtypes and chunks."""

import pytest
import torch
from torch import nn

from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.nn import quantized
from qkv.nn.embedding import ScaledEmbedding
from qkv.nn.quantized import (
    QuantizedEmbedding,
    QuantizedLinear,
    is_quantized,
    quantize,
    quantize_layers,
    quantized_layers,
)

GPT2_SIZES = {"vocab_size": 50, "dim": 32, "heads": 4, "layers": 2, "max_length": 16}
TRANSFORMER_SIZES = {"dim": 32, "heads": 4, "encoder_layers": 2, "decoder_layers": 2, "ffn_dim": 64, "max_length": 16}
TOKENS = torch.tensor([[4, 5, 6, 7], [8, 4, 9, 1]])


def build(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    if name == "gpt2":
        return GPT2(GPT2Config(**GPT2_SIZES | options)).eval()
    vocab_sizes = {"source_vocab_size": 50, "target_vocab_size": 50}
    return Transformer(TransformerConfig(**vocab_sizes, **TRANSFORMER_SIZES | options)).eval()


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS) if isinstance(model, GPT2) else model(TOKENS, TOKENS, torch.tensor([4, 3]))


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value - truth).norm() / truth.norm())


def test_rows_are_scaled_by_their_largest_weight():
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [1e-3, 5e-4, -1e-3]])
    q, scale = quantize(weight)
    assert q.tolist() == [[64, -127, 32], [0, 0, 0], [127, 64, -127]]
    torch.testing.assert_close(scale, torch.tensor([2 / 127, 1e-30 / 127, 1e-3 / 127]))


@pytest.mark.parametrize("chunk", [1, 40, 2**21])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_equals_that_of_the_dequantized_weights(bias, chunk, monkeypatch):
    monkeypatch.setattr(quantized, "CHUNK", chunk)
    linear = nn.Linear(12, 7, bias=bias)
    q, scale = quantize(linear.weight.detach())
    layer = QuantizedLinear(q, scale, linear.bias)
    linear.weight.data = q * scale[:, None]
    x = torch.randn(2, 3, 12)
    torch.testing.assert_close(layer(x), linear(x))
    torch.testing.assert_close(layer(x, slice(2, 5)), linear(x)[..., 2:5])
    assert layer(x.bfloat16()).dtype == torch.bfloat16


def test_an_embedding_keeps_its_factor():
    embed = ScaledEmbedding(9, 4)
    q, scale = quantize(embed.weight.detach())
    embed.weight.data = q * scale[:, None]
    layer = QuantizedEmbedding(q, scale, embed.scale)
    torch.testing.assert_close(layer(TOKENS.clamp(max=8)), embed(TOKENS.clamp(max=8)))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt2", {}),
        ("gpt2", {"tie_embeddings": False}),
        ("gpt2", {"position": "rotary"}),
        ("transformer", {}),
        ("transformer", {"norm": "post", "output_bias": True}),
        ("transformer", {"tie_embeddings": False, "tie_output": True}),
        ("transformer", {"tie_embeddings": False, "score": "additive"}),
    ],
)
def test_the_logits_of_a_quantized_model_are_close(name, options):
    model = build(name, **options)
    expected, weights = logits(model), sum(weight.numel() for weight in model.parameters())
    quantize_layers(model)
    assert is_quantized(model)
    assert not any(weight.requires_grad for weight in model.parameters())
    assert relative_error(logits(model), expected) < 0.03
    scales = [weight for key, weight in model.named_parameters() if key.endswith("_scale")]
    assert sum(weight.numel() for weight in model.parameters()) - sum(map(torch.numel, scales)) == weights
    remaining = [type(layer).__name__ for layer in model.modules() if isinstance(layer, nn.Embedding)]
    assert not remaining


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_tied_weights_stay_tied_also_when_the_model_is_moved(device):
    model = build("transformer")
    quantize_layers(model)
    layers = quantized_layers(model)
    tied = [layers[name] for name in ("source_embed.tokens", "target_embed.tokens", "readout")]
    model.to(device, torch.bfloat16)
    assert len({id(layer.weight) for layer in tied}) == len({id(layer.weight_scale) for layer in tied}) == 1
    untied = build("transformer", tie_embeddings=False)
    quantize_layers(untied)
    assert untied.readout.weight is not untied.target_embed.tokens.weight


def test_tokens_are_decoded_from_a_state():
    """Cached decoding computes in the dtype of the activations."""
    model = build("gpt2")
    quantize_layers(model)
    first, state = model.forward_from(TOKENS[:, :2], model.init_state(2))
    second, _ = model.forward_from(TOKENS[:, 2:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), logits(model))
