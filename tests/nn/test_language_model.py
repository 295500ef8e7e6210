"""What is common to language models: states that can be taken apart, put together, and cut off from their past."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from qkv.nn.language_model import LanguageModel, detached, tensors_of, with_tensors


@dataclass(frozen=True)
class Part:
    keys: Tensor
    mean: Tensor | None


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    hidden: Tensor
    span: int


def whole() -> Whole:
    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, requires_grad=True) * 2

    return Whole((Part(numbers(2, 3), None), Part(numbers(2, 4), numbers(2, 1))), numbers(2, 5), 7)


def test_every_tensor_of_a_state_has_a_path():
    state = whole()
    found = tensors_of(state)
    assert list(found) == ["parts.0.keys", "parts.1.keys", "parts.1.mean", "hidden"]
    assert found["parts.1.mean"] is state.parts[1].mean
    assert tensors_of(None) == {}


def test_a_state_is_put_together_again_from_its_tensors():
    state, other = whole(), whole()
    again = with_tensors(other, tensors_of(state))
    assert type(again) is Whole
    assert again.span == 7
    assert again.parts[0].mean is None
    assert all(
        again_one is one for again_one, one in zip(tensors_of(again).values(), tensors_of(state).values(), strict=True)
    )
    assert with_tensors(state, {}) == state


def test_tensors_of_other_sizes_take_their_places():
    longer = torch.zeros(2, 9)
    state = with_tensors(whole(), {"parts.0.keys": longer})
    assert state.parts[0].keys is longer
    assert state.parts[1].keys.shape == (2, 4)


def test_a_detached_state_has_the_same_numbers_and_no_past():
    state = whole()
    assert all(tensor.requires_grad for tensor in tensors_of(state).values())
    for name, tensor in tensors_of(detached(state)).items():
        assert not tensor.requires_grad
        assert tensor.equal(tensors_of(state)[name])


class Counting(LanguageModel[Tensor]):
    """A model that only says how many tokens it has read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def start(self, batch: int) -> Tensor:
        return torch.zeros(batch)

    def read(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        seen = state[:, None] + torch.arange(1, tokens.shape[1] + 1)
        return seen[:, :, None] * self.weight, seen[:, -1]


def test_a_step_is_a_reading_of_one_token_and_a_call_a_reading_from_the_start():
    model, tokens = Counting(), torch.zeros(2, 3, dtype=torch.long)
    assert model(tokens)[0, :, 0].tolist() == [1.0, 2.0, 3.0]
    logits, state = model.step(tokens[:, 0], model.start(2))
    assert logits.tolist() == [[1.0], [1.0]]
    logits, _ = model.step(tokens[:, 1], state)
    assert logits.tolist() == [[2.0], [2.0]]
    assert model.device == torch.device("cpu")


def test_a_language_model_has_to_say_how_it_starts_and_reads():
    with pytest.raises(TypeError, match="abstract"):
        LanguageModel()
