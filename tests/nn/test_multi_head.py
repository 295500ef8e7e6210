"""Multi-head attention against PyTorch's, and against separate heads."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from qkv.attention import Additive, ALiBi, Causal, Cosine, LocalMonotonic, Padding, Position, Rotary, Softmax
from qkv.errors import InputError
from qkv.nn.interfaces import select
from qkv.nn.multi_head import MultiHeadAttention


class Turn(Position):
    """Multiplies queries and keys by cos(position / 3), which differs for any two positions."""

    rotates_qk = True

    def apply_to_qk(self, x, positions):
        return x * torch.cos(positions.to(x.dtype) / 3)[:, None, :, None]


def twin(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """PyTorch's layer with our weights."""
    theirs = nn.MultiheadAttention(ours.out_proj.in_features, ours.heads, batch_first=True).eval()
    with torch.no_grad():
        nn.init.normal_(ours.qkv_proj.bias)
        nn.init.normal_(ours.out_proj.bias)
        theirs.in_proj_weight.copy_(ours.qkv_proj.weight)
        theirs.in_proj_bias.copy_(ours.qkv_proj.bias)
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    return theirs


def test_self_attention_matches_pytorch():
    torch.manual_seed(0)
    ours, x = MultiHeadAttention(12, 3), torch.randn(3, 6, 12)
    theirs = twin(ours)
    lengths = torch.tensor([6, 4, 1])
    padding = torch.arange(6) >= lengths[:, None]
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    for mask, kwargs in (
        (None, {}),
        (Causal(), {"attn_mask": later}),
        (Padding(lengths), {"key_padding_mask": padding}),
        (Causal() & Padding(lengths), {"attn_mask": later, "key_padding_mask": padding}),
    ):
        expected, _ = theirs(x, x, x, need_weights=False, **kwargs)
        torch.testing.assert_close(ours(x, mask)[0], expected, rtol=0, atol=1e-6)


def test_cross_attention_matches_pytorch():
    torch.manual_seed(0)
    ours, x, memory = MultiHeadAttention(12, 3), torch.randn(3, 4, 12), torch.randn(3, 6, 12)
    lengths = torch.tensor([6, 4, 1])
    expected, _ = twin(ours)(x, memory, memory, key_padding_mask=torch.arange(6) >= lengths[:, None])
    prepared = ours.keys_values(memory)
    torch.testing.assert_close(ours.cross(x, prepared, Padding(lengths)), expected, rtol=0, atol=1e-6)
    each = torch.cat([ours.cross(x[:, t : t + 1], prepared, Padding(lengths)) for t in range(4)], dim=1)
    torch.testing.assert_close(each, expected, rtol=0, atol=1e-6)


def reference_heads(layer: MultiHeadAttention, x, score, turn=lambda x: x):
    """Compute each head separately from its slices of the weights."""
    d = layer.head_dim
    query, key, value = (x @ layer.qkv_proj.weight.T + layer.qkv_proj.bias).chunk(3, dim=-1)
    read = layer.out_proj.bias
    for head in range(layer.heads):
        own = slice(head * d, (head + 1) * d)
        weights = score(head, turn(query[..., own]), turn(key[..., own])).softmax(-1)
        read = read + weights @ value[..., own] @ layer.out_proj.weight[:, own].T
    return read


def test_it_matches_separate_heads():
    layer, x = MultiHeadAttention(12, 4).double(), torch.randn(2, 5, 12, dtype=torch.float64)
    expected = reference_heads(layer, x, lambda head, q, k: q @ k.mT / math.sqrt(3))
    torch.testing.assert_close(layer(x)[0], expected)


def test_scores_positions_and_alignments_match_separate_heads():
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    additive = Additive(3, 3, 7, heads=4)

    def hidden(head, q, k):
        q, k = q @ additive.query_weight[head], k @ additive.key_weight[head]
        return torch.tanh(q[..., :, None, :] + k[..., None, :, :]) @ additive.vector[head] / 0.5

    layer = MultiHeadAttention(12, 4, score=additive, align=Softmax(0.5), position=Turn()).double()
    turns = torch.cos(torch.arange(5) / 3)[:, None].double()
    torch.testing.assert_close(layer(x)[0], reference_heads(layer, x, hidden, lambda x: x * turns))

    layer = MultiHeadAttention(12, 4).double()  # the position passed with the call
    expected = reference_heads(layer, x, lambda head, q, k: q @ k.mT / math.sqrt(3), lambda x: x * turns)
    torch.testing.assert_close(layer(x, position=Turn())[0], expected)
    torch.testing.assert_close(layer.cross(x, layer.keys_values(x, position=Turn()), position=Turn()), expected)


@pytest.mark.parametrize("position", [None, Turn()])
@pytest.mark.parametrize("score", [None, Cosine(heads=4), Additive(3, 3, 5)])
def test_stepwise_attention_with_a_cache_matches_the_full_sequence(score, position):
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(12, 4, score=score, position=position), torch.randn(3, 7, 12)
    expected, _ = layer(x, Causal())
    cache, actual = None, []
    for first, last in ((0, 3), (3, 4), (4, 5), (5, 7)):
        read, cache = layer(x[:, first:last], Causal(), cache)
        actual.append(read)
    torch.testing.assert_close(torch.cat(actual, dim=1), expected, rtol=0, atol=1e-5)


def test_rows_of_a_cache_can_be_reordered_between_steps():
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(12, 4), torch.randn(3, 5, 12)
    _, cache = layer(x[:, :3], Causal())
    rows = torch.tensor([2, 2, 0, 1])
    read, _ = layer(x[rows, 3:], Causal(), select(cache, rows))
    torch.testing.assert_close(read, layer(x[rows], Causal())[0][:, 3:], rtol=0, atol=1e-5)


def test_many_heads_cost_the_same_flops_as_one():
    x, counts = torch.randn(2, 16, 32), []
    for heads in (1, 4, 8):
        layer = MultiHeadAttention(32, heads)
        layer.attend.backend = "reference"  # whose products are all counted
        with FlopCounterMode(display=False) as counter:
            layer(x, Causal())
        counts.append(counter.get_total_flops())
    tokens, width, length = 32, 32, 16
    assert counts == [2 * tokens * width * (3 * width + width) + 2 * 2 * tokens * length * width] * 3


def test_keys_of_a_memory_are_computed_once():
    calls = []

    class Counted(Position):
        rotates_qk = True

        def apply_to_qk(self, x, positions):
            calls.append(x.shape[2])
            return x

    layer, x = MultiHeadAttention(12, 4, position=Counted()), torch.randn(1, 1, 12)
    memory = layer.keys_values(torch.randn(1, 9, 12))
    for _ in range(3):
        layer.cross(x, memory)
    assert calls == [9, 1, 1, 1]


def test_indivisible_sizes_raise():
    with pytest.raises(InputError, match="divisible"):
        MultiHeadAttention(12, 5)


# The shape checks of the test suite cannot be compiled: this runs in a separate process.
COMPILED = """
import torch
from torch import nn

import qkv
from qkv.attention import Causal, Padding
from qkv.nn.multi_head import MultiHeadAttention


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.ModuleList([MultiHeadAttention(12, 2), MultiHeadAttention(12, 4)])
        self.cross = MultiHeadAttention(12, 3)

    def forward(self, x, memory, lengths, caches=(None, None)):
        after = []
        for layer, cache in zip(self.own, caches):
            read, cache = layer(x, Causal(), cache)
            x = x + read
            after.append(cache)
        return x + self.cross.cross(x, self.cross.keys_values(memory), Padding(lengths)), tuple(after)


torch.manual_seed(0)
model, x, memory, lengths = Decoder(), torch.randn(2, 6, 12), torch.randn(2, 5, 12), torch.tensor([5, 3])
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
with qkv.watch(model) as expected:
    output, _ = model(x, memory, lengths)
torch.testing.assert_close(compiled(x, memory, lengths)[0], output)
with qkv.watch(compiled) as seen:
    torch.testing.assert_close(compiled(x, memory, lengths)[0], output)
assert list(seen) == ["own.0", "own.1", "cross"]
for layer in seen:
    torch.testing.assert_close(seen[layer].weights, expected[layer].weights)
"""


def test_two_layers_compile_into_one_graph_with_and_without_watch():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("position", [None, Rotary(4), ALiBi(2)])
@pytest.mark.parametrize("align", [None, LocalMonotonic(1)])
def test_positions_are_the_same_stepwise_and_at_once(align, position):
    torch.manual_seed(0)
    heads, x, memory = (
        MultiHeadAttention(8, 2, align=align, position=position),
        torch.randn(2, 5, 8),
        torch.randn(2, 6, 8),
    )
    full, _ = heads(x, Causal())
    source = heads.keys_values(memory)
    expected_cross = heads.cross(x, source, start=0)
    cache = None
    with torch.no_grad():
        for t in range(5):
            step, cache = heads(x[:, t : t + 1], Causal(), cache)
            torch.testing.assert_close(step, full[:, t : t + 1], rtol=0, atol=1e-5)
            cross = heads.cross(x[:, t : t + 1], source, start=t)
            torch.testing.assert_close(cross, expected_cross[:, t : t + 1], rtol=0, atol=1e-5)
