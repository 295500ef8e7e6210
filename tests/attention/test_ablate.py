"""Ablated heads output zeros until they are restored."""

import gc
import subprocess
import sys

import pytest
import torch
from torch import nn

import qkv
from qkv.attention import Attend, Causal
from qkv.errors import InputError
from qkv.nn.multi_head import MultiHeadAttention


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(12, 3)

    def forward(self, x):
        return self.attention(x, Causal())[0]


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Layer(), Layer())


def test_ablating_all_other_heads_leaves_the_contribution_of_one():
    layer, x = make()[0], torch.randn(2, 5, 12)
    heads = layer.attention
    query, key, value = (part[..., 4:8] for part in heads.qkv_proj(x).chunk(3, dim=-1))  # of head 1
    scores = query @ key.mT / 2 + torch.full((5, 5), -torch.inf).triu(1)
    alone = scores.softmax(-1) @ value @ heads.out_proj.weight[:, 4:8].T + heads.out_proj.bias
    with qkv.ablate(layer, "", [0, 2]):
        torch.testing.assert_close(layer(x), alone)


def test_recorded_weights_do_not_change():
    model, x = make(), torch.randn(2, 5, 12)
    with qkv.watch(model) as before:
        plain = model(x)
    with qkv.ablate(model, 1, [0, 1, 2]), qkv.watch(model) as after:
        changed = model(x)
    assert not changed.allclose(plain)
    for layer in before:
        assert after[layer].weights.equal(before[layer].weights)


def test_no_gradient_flows_through_ablated_heads():
    model, x = make(), torch.randn(2, 5, 12)
    with qkv.ablate(model, 0, [1]):
        model(x).sum().backward()
    query, key, value = model[0].attention.qkv_proj.weight.grad.chunk(3)
    for part in (query, key, value):
        assert part[4:8].eq(0).all()
        assert part[:4].abs().sum() > 0
        assert part[8:].abs().sum() > 0


def test_non_finite_outputs_of_ablated_heads_become_zero():
    attend, x = Attend(), torch.randn(1, 2, 3, 4)
    value = x.clone()
    value[:, 1] = torch.nan
    with qkv.ablate(attend, "", [1]):
        assert attend(x, x, value).output[:, 1].eq(0).all()


def test_ablations_accumulate_and_are_restored_in_any_order():
    model, x = make(), torch.randn(1, 4, 12)
    plain = model(x)
    with qkv.ablate(model, 0, [0]):
        first = model(x)
    with qkv.ablate(model, 0, [0, 1]):
        both = model(x)
    first_ablation = qkv.ablate(model, 0, [0])
    second_ablation = qkv.ablate(model, 0, [0, 1])
    assert model(x).equal(both)
    first_ablation.restore()
    assert model(x).equal(both)
    first_ablation.restore()  # the second call has no effect
    assert model(x).equal(both)
    third_ablation = qkv.ablate(model, 0, [0])
    second_ablation.restore()
    assert model(x).equal(first)
    third_ablation.restore()
    assert model(x).equal(plain)


def test_heads_are_restored_if_the_block_raises():
    model, x = make(), torch.randn(1, 4, 12)
    plain = model(x)
    with pytest.raises(ZeroDivisionError), qkv.ablate(model, 0, [0]):
        raise ZeroDivisionError
    assert model(x).equal(plain)


def test_heads_stay_ablated_if_the_result_is_discarded():
    model, x = make(), torch.randn(1, 4, 12)
    with qkv.ablate(model, 0, [0]):
        expected = model(x)
    qkv.ablate(model, 0, [0])
    gc.collect()
    assert model(x).equal(expected)


# A module of PyTorch, in a separate process, because its ablation is never undone.
DISCARDED = """
import gc
import torch
from torch import nn
import qkv

layer, x = nn.MultiheadAttention(8, 2).eval(), torch.randn(3, 1, 8)
with qkv.ablate(layer, "attention", [0]):
    expected = layer(x, x, x)[0]
qkv.ablate(layer, "attention", [0])
gc.collect()
assert layer(x, x, x)[0].equal(expected)
kept = qkv.ablate(layer, "attention", [1])
"""


def test_ablations_that_are_not_restored_end_with_the_process_without_a_message():
    process = subprocess.run([sys.executable, "-c", DISCARDED], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


def test_a_layer_that_cannot_be_ablated_leaves_the_others_intact(monkeypatch):
    def fail(*args, **options):
        raise ZeroDivisionError

    model = nn.ModuleList(nn.MultiheadAttention(8, 2) for _ in range(2))
    monkeypatch.setattr(model[1], "register_forward_hook", fail)
    with pytest.raises(ZeroDivisionError) as raised:
        qkv.ablate(nn.ModuleDict({"encoder": model}), "encoder", [0])
    assert raised.tb is not None  # which would keep generators alive
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_name_may_match_several_layers():
    model, x = nn.ModuleDict({"encoder": make()}), torch.randn(1, 4, 12)
    with qkv.ablate(model, "encoder", [0, 1, 2]):
        for layer in model["encoder"]:
            torch.testing.assert_close(layer(x), layer.attention.out_proj.bias.expand(1, 4, 12))


def test_ablation_is_not_in_the_state_dict_and_survives_a_dtype_change():
    model = make()
    names = list(model.state_dict())
    with qkv.ablate(model, 0, [2]):
        assert list(model.state_dict()) == names
        x = torch.randn(1, 4, 12, dtype=torch.float64)
        expected = model.double()(x)
    with qkv.ablate(model, 0, [2]):
        assert model(x).equal(expected)


# The run-time shape checks of the tests cannot be compiled, so this runs in a separate process.
COMPILED = """
import torch
from torch import nn
import qkv
from qkv.attention import Causal
from qkv.nn.multi_head import MultiHeadAttention

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = MultiHeadAttention(12, 3)

    def forward(self, x):
        return self.attention(x, Causal())[0]

model, x = nn.Sequential(Layer(), Layer()), torch.randn(1, 4, 12)
compiled = torch.compile(model, fullgraph=True, backend="eager")
plain = compiled(x)
for target in (model, compiled):
    with qkv.ablate(target, 0, [2]):
        expected = model(x)
        torch.testing.assert_close(compiled(x), expected)
    assert not expected.allclose(plain)
    assert compiled(x).equal(plain)
"""


def test_compiled_models_can_be_ablated():
    process = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.mark.parametrize(
    ("layer", "heads", "message"),
    [
        (0, [3], "head 3"),
        (0, [-1], "distinct"),
        (0, [1, 1], "distinct"),
        (0, [], "non-empty"),
        (7, [0], "layer"),
    ],
)
def test_invalid_heads_and_layers_raise(layer, heads, message):
    with pytest.raises(InputError, match=message):
        qkv.ablate(make(), layer, heads)


def test_unknown_head_count_is_checked_at_the_first_call():
    attend, x = Attend(), torch.randn(1, 2, 3, 4)
    with qkv.ablate(attend, "", [2]), pytest.raises(InputError, match="head 2"):
        attend(x, x, x)
