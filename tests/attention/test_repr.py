"""Reprs and signatures of scores, align functions, positions and masks."""

import inspect
import pickle
from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from qkv.attention import (
    Additive,
    ALiBi,
    Align,
    Attend,
    Causal,
    Cosine,
    Entmax,
    Hard,
    Learned,
    LocalPredictive,
    Mask,
    Padding,
    Prefix,
    Quadratic,
    Relative,
    ScaledDot,
    Score,
    Sinusoidal,
    Sizes,
    Softmax,
    Window,
    attend,
)
from qkv.config import Term, options_of

LENGTHS = torch.tensor([5, 3])


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (Softmax(), "Softmax()"),
        (Softmax(temperature=0.5), "Softmax(temperature=0.5)"),
        (Entmax(2.5), "Entmax(alpha=2.5)"),
        (ScaledDot(), "ScaledDot()"),
        (Additive(64, 64, 32), "Additive(query_dim=64, key_dim=64, hidden_dim=32)"),
        (Cosine(heads=4), "Cosine(heads=4)"),
        (LocalPredictive(8, 3), "LocalPredictive(query_dim=8, window=3, hidden_dim=8)"),
        (Hard(), "Hard()"),
        (Hard("reinforce"), "Hard(estimator='reinforce')"),
        (Relative(8, 3, values=False), "Relative(dim=8, max_distance=3, values=False)"),
        (ALiBi(4), "ALiBi(heads=4)"),
        (Quadratic(4, 7), "Quadratic(heads=4, columns=7)"),
        (Sinusoidal(8), "Sinusoidal(dim=8)"),
        (Learned(5, 6), "Learned(max_length=5, dim=6)"),
        (Padding(LENGTHS), "Padding(lengths=Tensor[2])"),
        (Causal() & Padding(LENGTHS), "Causal() & Padding(lengths=Tensor[2])"),
        ((Causal() | Prefix(3)) & ~Window(1, 2), "(Causal() | Prefix(length=3)) & ~Window(left=1, right=2)"),
        (~(Causal() & Prefix(3)), "~(Causal() & Prefix(length=3))"),
    ],
)
def test_a_repr_gives_the_arguments_that_are_not_defaults(term: object, text: str):
    assert repr(term) == text
    assert repr(deepcopy(term)) == repr(pickle.loads(pickle.dumps(term))) == text


@pytest.mark.parametrize("mask", [(Causal() | Window(3, 0)) & ~Window(1, 2), Causal() & (Causal() & Window(0, 1))])
def test_the_repr_of_a_mask_without_tensors_is_an_expression_for_it(mask: Mask):
    assert eval(repr(mask), {"Causal": Causal, "Window": Window}) == mask


def test_terms_of_plug_ins_have_the_same_reprs():
    class Mine(nn.Module, Align):
        def __init__(self, width: int, depth: int = 1) -> None:
            super().__init__()
            self.width, self.depth = width, depth

        def compute_weights(self, inputs):
            return inputs.scores

    @dataclass(frozen=True)
    class Every(Mask):
        stride: int

        def allows(self, index):
            return index.key % self.stride == 0

        def __repr__(self) -> str:
            return f"every {self.stride}"

    assert repr(Mine(3)) == "Mine(width=3)"
    assert repr(Causal() & Every(2)) == "Causal() & every 2"
    assert "(score): ScaledDot()" in repr(Attend())


def test_signatures_have_plain_types_and_values():
    assert str(inspect.signature(Entmax)) == "(alpha: float = 1.5) -> None"
    assert "Annotated" not in str(inspect.signature(Hard.from_sizes))
    assert "= ScaledDot()" in str(inspect.signature(attend))
    assert "= Softmax()" in str(inspect.signature(attend))
    assert str(inspect.signature(Score)) == "() -> None"


def test_options_keep_the_ranges_that_signatures_do_not_show():
    assert [entry.gt for entry in options_of(Entmax).model_fields["alpha"].metadata if hasattr(entry, "gt")] == [1]
    assert Term("score", "cosine", {"sharpness": 2.0}).build(Sizes(8, 8, 8, 5)).sharpness == 2.0


def test_the_module_shows_terms_without_parameters():
    shown = repr(Attend(align=Entmax(1.7), position=ALiBi(4), dropout=0.1, backend="reference"))
    assert "align=Entmax(alpha=1.7), position=ALiBi(heads=4), dropout=0.1, backend='reference'" in shown
    assert "align" not in repr(Attend())
