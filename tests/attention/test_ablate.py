"""Heads that are switched off read zeros, and come back."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import qkv
from qkv.attention import Attend, Causal
from qkv.errors import InputError
from qkv.nn.heads import MultiHead


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHead(12, 3)

    def forward(self, x):
        return self.attention(x, Causal())[0]


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Layer(), Layer())


def test_ablating_all_heads_but_one_leaves_what_that_head_alone_contributes():
    layer, x = make()[0], torch.randn(2, 5, 12)
    heads = layer.attention
    query, key, value = (part[..., 4:8] for part in heads.project(x).chunk(3, dim=-1))  # of head 1
    scores = query @ key.mT / 2 + torch.full((5, 5), -torch.inf).triu(1)
    alone = scores.softmax(-1) @ value @ heads.output.weight[:, 4:8].T + heads.output.bias
    with qkv.ablate(layer, "", [0, 2]):
        torch.testing.assert_close(layer(x), alone)


def test_the_weights_that_are_seen_do_not_change():
    model, x = make(), torch.randn(2, 5, 12)
    with qkv.watch(model) as before:
        plain = model(x)
    with qkv.ablate(model, 1, [0, 1, 2]), qkv.watch(model) as after:
        changed = model(x)
    assert not changed.allclose(plain)
    for layer in before:
        assert after[layer].weights.equal(before[layer].weights)


def test_no_gradient_flows_through_a_head_that_is_off():
    model, x = make(), torch.randn(2, 5, 12)
    with qkv.ablate(model, 0, [1]):
        model(x).sum().backward()
    query, key, value = model[0].attention.project.weight.grad.chunk(3)
    for part in (query, key, value):
        assert part[4:8].eq(0).all()
        assert part[:4].abs().sum() > 0
        assert part[8:].abs().sum() > 0


def test_what_is_not_finite_goes_no_further_than_the_head_that_is_off():
    attend, x = Attend(), torch.randn(1, 2, 3, 4)
    value = x.clone()
    value[:, 1] = torch.nan
    with qkv.ablate(attend, "", [1]):
        assert attend(x, x, value).output[:, 1].eq(0).all()


def test_ablations_add_up_and_are_undone_in_any_order():
    model, x = make(), torch.randn(1, 4, 12)
    plain = model(x)
    with qkv.ablate(model, 0, [0]):
        first = model(x)
    with qkv.ablate(model, 0, [0, 1]):
        both = model(x)
    one = qkv.ablate(model, 0, [0])
    other = qkv.ablate(model, 0, [0, 1])
    assert model(x).equal(both)
    one.restore()
    assert model(x).equal(both)
    one.restore()  # a second time does nothing
    assert model(x).equal(both)
    again = qkv.ablate(model, 0, [0])
    other.restore()
    assert model(x).equal(first)
    again.restore()
    assert model(x).equal(plain)


def test_heads_come_back_even_if_the_block_fails():
    model, x = make(), torch.randn(1, 4, 12)
    plain = model(x)
    with pytest.raises(ZeroDivisionError), qkv.ablate(model, 0, [0]):
        raise ZeroDivisionError
    assert model(x).equal(plain)


def test_a_name_may_stand_for_several_layers():
    model, x = nn.ModuleDict({"encoder": make()}), torch.randn(1, 4, 12)
    with qkv.ablate(model, "encoder", [0, 1, 2]):
        for layer in model["encoder"]:
            torch.testing.assert_close(layer(x), layer.attention.output.bias.expand(1, 4, 12))


def test_ablation_is_no_part_of_what_is_saved_and_follows_the_model_to_another_type():
    model = make()
    names = list(model.state_dict())
    with qkv.ablate(model, 0, [2]):
        assert list(model.state_dict()) == names
        x = torch.randn(1, 4, 12, dtype=torch.float64)
        expected = model.double()(x)
    with qkv.ablate(model, 0, [2]):
        assert model(x).equal(expected)


# What checks shapes in tests cannot be compiled: this runs in a process of its own.
COMPILED = """
import torch
from torch import nn
import qkv
from qkv.attention import Causal
from qkv.nn.heads import MultiHead

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = MultiHead(12, 3)

    def forward(self, x):
        return self.attention(x, Causal())[0]

model, x = nn.Sequential(Layer(), Layer()), torch.randn(1, 4, 12)
compiled = torch.compile(model, fullgraph=True, backend="eager")
plain = compiled(x)
for given in (model, compiled):
    with qkv.ablate(given, 0, [2]):
        expected = model(x)
        torch.testing.assert_close(compiled(x), expected)
    assert not expected.allclose(plain)
    assert compiled(x).equal(plain)
"""


def test_a_compiled_model_ablates_too():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("layer", "heads", "words"),
    [
        (0, [3], "no head 3 in 0: its heads are numbered from 0 to 2"),
        (0, [-1], "numbers from 0 on"),
        (0, [1, 1], "none twice"),
        (0, [], "at least one"),
        (7, [0], "no attention layer matches 7 .layers: 0, 1."),
    ],
)
def test_heads_and_layers_that_are_not_there_are_refused_in_words(layer, heads, words):
    with pytest.raises(InputError, match=words):
        qkv.ablate(make(), layer, heads)


def test_a_layer_that_learns_of_its_heads_from_its_inputs_refuses_at_the_first_call():
    attend, x = Attend(), torch.randn(1, 2, 3, 4)
    with qkv.ablate(attend, "", [2]), pytest.raises(InputError, match="numbered from 0 to 1"):
        attend(x, x, x)
