"""Llama: its equations by plain loops, packed and padded batches, and errors."""

import pytest
import torch
from torch.nn import functional as F

from qkv.errors import ConfigError, InputError
from qkv.models.llama import Llama, LlamaConfig


def make_model(**options):
    torch.manual_seed(0)
    config = {"vocab_size": 13, "dim": 24, "heads": 6, "kv_heads": 2, "layers": 2, "max_length": 16} | options
    model = Llama(LlamaConfig(**config)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def rms_norm(x, weight):
    return weight * x / ((x * x).mean() + 1e-5).sqrt()


def rotated(x, position):
    """Rotate pairs of features (i, i + d/2) as complex numbers."""
    half = len(x) // 2
    angle = position * 10000.0 ** (-torch.arange(half, dtype=torch.double) / half)
    turned = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones(half, dtype=torch.double), angle)
    return torch.cat((turned.real, turned.imag))


def logits_by_loops(model, tokens):
    """Compute the equations one token, head and key at a time."""
    config, weights = model.config, dict(model.named_parameters())
    heads, kv_heads, size = config.heads, config.kv_heads, config.dim // config.heads
    hidden = [weights["embed.weight"][token] for token in tokens]
    for layer in range(config.layers):
        name = f"blocks.{layer}"
        normed = [rms_norm(x, weights[f"{name}.attention_norm.weight"]) for x in hidden]
        projected = [weights[f"{name}.attention.qkv_proj.weight"] @ x for x in normed]
        queries = [x[: heads * size].view(heads, size) for x in projected]
        keys = [x[heads * size :].view(2, kv_heads, size)[0] for x in projected]
        values = [x[heads * size :].view(2, kv_heads, size)[1] for x in projected]
        for t in range(len(tokens)):
            heads_out = []
            for head in range(heads):
                shared = head // (heads // kv_heads)
                query = rotated(queries[t][head], t)
                scores = torch.stack([query @ rotated(keys[s][shared], s) for s in range(t + 1)]) / size**0.5
                p = scores.softmax(0)
                heads_out.append(sum(p[s] * values[s][shared] for s in range(t + 1)))
            hidden[t] = hidden[t] + weights[f"{name}.attention.out_proj.weight"] @ torch.cat(heads_out)
            x = rms_norm(hidden[t], weights[f"{name}.ffn_norm.weight"])
            gate, value = (weights[f"{name}.ffn.up_proj.weight"] @ x).chunk(2)
            hidden[t] = hidden[t] + weights[f"{name}.ffn.down_proj.weight"] @ (F.silu(gate) * value)
    return torch.stack([weights["readout.weight"] @ rms_norm(x, weights["norm.weight"]) for x in hidden])


@torch.no_grad()
def test_logits_equal_the_equations():
    model, tokens = make_model(), torch.tensor([3, 1, 12, 1, 7])
    torch.testing.assert_close(model(tokens[None])[0], logits_by_loops(model, tokens))


@torch.no_grad()
def test_documents_of_a_packed_batch_are_independent():
    model, tokens = make_model(), torch.tensor([[3, 1, 12, 1, 7, 5, 2]])
    packed = model(tokens, documents=torch.tensor([[0, 0, 0, 1, 1, 1, 1]]))
    apart = torch.cat((model(tokens[:, :3]), model(tokens[:, 3:])), dim=1)
    torch.testing.assert_close(packed, apart)


@torch.no_grad()
def test_left_padding_does_not_change_the_logits():
    model, tokens = make_model(), torch.tensor([[9, 9, 3, 1, 12]])
    padded = model(tokens, padding=torch.tensor([2]))[:, 2:]
    torch.testing.assert_close(padded, model(tokens[:, 2:]))
    with pytest.raises(InputError, match="mutually exclusive"):
        model(tokens, padding=torch.tensor([2]), documents=tokens)


def test_the_default_width_of_the_networks_is_that_of_llama2_c():
    assert [LlamaConfig(dim=dim, heads=1).ffn_width for dim in (288, 512, 768)] == [768, 1376, 2048]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_heads": 4}, "kv_heads 4"),
        ({"position": "learned"}, "inside attention"),
        ({"dim": 30, "heads": 6, "kv_heads": 6}, "rotary"),
        ({"dim": 2**20, "heads": 1, "kv_heads": 1}, "too large"),
    ],
)
def test_impossible_configs_are_errors(options, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        make_model(**options)
