"""The language model interface, and operations on states."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from qkv.nn.language_model import LanguageModel, detach_state, replace_tensors, state_tensors


@dataclass(frozen=True)
class Part:
    keys: Tensor
    mean: Tensor | None


@dataclass(frozen=True)
class State:
    parts: tuple[Part, ...]
    hidden: Tensor
    span: int


def make_state() -> State:
    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, requires_grad=True) * 2

    return State((Part(numbers(2, 3), None), Part(numbers(2, 4), numbers(2, 1))), numbers(2, 5), 7)


def test_every_tensor_of_a_state_has_a_path():
    state = make_state()
    actual = state_tensors(state)
    assert list(actual) == ["parts.0.keys", "parts.1.keys", "parts.1.mean", "hidden"]
    assert actual["parts.1.mean"] is state.parts[1].mean
    assert state_tensors(None) == {}


def test_a_state_is_rebuilt_from_its_tensors():
    state, other = make_state(), make_state()
    again = replace_tensors(other, state_tensors(state))
    assert type(again) is State
    assert again.span == 7
    assert again.parts[0].mean is None
    assert all(
        rebuilt is original
        for rebuilt, original in zip(state_tensors(again).values(), state_tensors(state).values(), strict=True)
    )
    assert replace_tensors(state, {}) == state


def test_replaced_tensors_may_have_another_shape():
    longer = torch.zeros(2, 9)
    state = replace_tensors(make_state(), {"parts.0.keys": longer})
    assert state.parts[0].keys is longer
    assert state.parts[1].keys.shape == (2, 4)


def test_a_detached_state_has_equal_values_and_no_graph():
    state = make_state()
    assert all(tensor.requires_grad for tensor in state_tensors(state).values())
    for name, tensor in state_tensors(detach_state(state)).items():
        assert not tensor.requires_grad
        assert tensor.equal(state_tensors(state)[name])


class Counting(LanguageModel[Tensor]):
    """Its logit is the number of tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def init_state(self, batch: int) -> Tensor:
        return torch.zeros(batch)

    def forward_from(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        seen = state[:, None] + torch.arange(1, tokens.shape[1] + 1)
        return seen[:, :, None] * self.weight, seen[:, -1]


def test_step_and_forward_are_derived_from_forward_from():
    model, tokens = Counting(), torch.zeros(2, 3, dtype=torch.long)
    assert model(tokens)[0, :, 0].tolist() == [1.0, 2.0, 3.0]
    logits, state = model.step(tokens[:, 0], model.init_state(2))
    assert logits.tolist() == [[1.0], [1.0]]
    logits, _ = model.step(tokens[:, 1], state)
    assert logits.tolist() == [[2.0], [2.0]]
    assert model.device == torch.device("cpu")


def test_a_language_model_must_define_init_state_and_forward_from():
    with pytest.raises(TypeError, match="abstract"):
        LanguageModel()
