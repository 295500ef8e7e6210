"""The model interfaces: methods that models inherit, and functions on states."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from qkv.nn.interfaces import EncoderDecoder, LanguageModel, detach_state, replace_tensors, select, state_tensors


@dataclass(frozen=True)
class Sum:
    total: Tensor  # batch


class StepModel(EncoderDecoder[Sum, Sum]):
    """Defines `step`: the running sum of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def encode(self, source, source_lengths=None):
        return Sum(source.sum(dim=1))

    def init_state(self, memory):
        return memory

    def step(self, token, state):
        state = Sum(state.total + token)
        return state.total[:, None] * self.scale, state


class ForwardFromModel(StepModel):
    """The same, defining `forward_from`."""

    step = EncoderDecoder.step

    def forward_from(self, tokens, state):
        totals = state.total[:, None] + tokens.cumsum(dim=1)
        return totals[:, :, None] * self.scale, Sum(totals[:, -1])


def test_step_and_forward_from_are_derived_from_each_other():
    source, target = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[10, 20, 30], [50, 60, 70]])
    totals = torch.tensor([[13.0, 33.0, 63.0], [57.0, 117.0, 187.0]])
    for model in (StepModel(), ForwardFromModel()):
        assert model(source, target).equal(totals[:, :, None].expand(-1, -1, 3))
        logits, state = model.forward_from(target[:, :2], model.init_state(model.encode(source)))
        assert logits.equal(totals[:, :2, None].expand(-1, -1, 3))
        logits, state = model.step(target[:, 2], state)
        assert logits.equal(totals[:, 2, None].expand(-1, 3))
        assert state.total.equal(totals[:, 2].long())


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
        self.readout = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.readout.weight)

    def init_state(self, batch: int) -> Tensor:
        return torch.zeros(batch)

    def hidden_from(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        seen = state[:, None] + torch.arange(1, tokens.shape[1] + 1)
        return seen[:, :, None], seen[:, -1]


def test_step_and_forward_are_derived_from_hidden_from():
    model, tokens = Counting(), torch.zeros(2, 3, dtype=torch.long)
    assert model(tokens)[0, :, 0].tolist() == [1.0, 2.0, 3.0]
    logits, state = model.step(tokens[:, 0], model.init_state(2))
    assert logits.tolist() == [[1.0], [1.0]]
    logits, _ = model.step(tokens[:, 1], state)
    assert logits.tolist() == [[2.0], [2.0]]
    assert model.device == torch.device("cpu")


def test_a_language_model_must_define_init_state_and_hidden_from():
    with pytest.raises(TypeError, match="abstract"):
        LanguageModel()


@dataclass(frozen=True)
class Memory:
    keys: Tensor
    layers: tuple[Tensor, ...]


@dataclass(frozen=True)
class DecoderState:
    memory: Memory
    hidden: Tensor
    step: Tensor
    position: int = 0
    past: tuple[Tensor, ...] | None = None


def decoder_state() -> DecoderState:
    memory = Memory(torch.arange(6.0).view(3, 2), (torch.arange(3), torch.arange(9).view(3, 3)))
    return DecoderState(memory, torch.arange(12.0).view(3, 4), torch.tensor(5), 7)


def test_select_picks_rows_of_tensors_and_keeps_numbers():
    rows = torch.tensor([2, 0, 0, 1])
    actual = select(decoder_state(), rows)
    assert actual.memory.keys.equal(decoder_state().memory.keys[rows])
    assert [layer.tolist() for layer in actual.memory.layers] == [
        [2, 0, 0, 1],
        decoder_state().memory.layers[1][rows].tolist(),
    ]
    assert actual.hidden.equal(decoder_state().hidden[rows])
    assert (actual.step.item(), actual.position, actual.past) == (5, 7, None)


def test_select_keeps_shared_parts_and_picks_the_rest():
    initial = decoder_state()
    now = replace(initial, hidden=initial.hidden + 1, past=(initial.hidden + 2,), position=8)
    rows = torch.tensor([1, 1, 0])
    actual = select(now, rows, shared=initial)
    assert actual.memory.keys is initial.memory.keys
    assert actual.memory.layers[0] is initial.memory.layers[0]
    assert actual.hidden.equal(now.hidden[rows])
    assert actual.past[0].equal(now.past[0][rows])
    mixed = replace(now, memory=Memory(initial.memory.keys + 1, initial.memory.layers))
    actual = select(mixed, rows, shared=initial)
    assert actual.memory.keys.equal(mixed.memory.keys[rows])
    assert actual.memory.layers[0] is initial.memory.layers[0]


def test_shared_parts_stay_shared():
    initial = decoder_state()
    now = replace(initial, hidden=initial.hidden + 1)
    rows = torch.tensor([2, 1])
    later, origin = select((now, initial), rows)
    assert later.memory.keys is origin.memory.keys
    assert later.memory.keys.equal(initial.memory.keys[rows])
    assert select(later, torch.tensor([0, 0]), shared=origin).memory.keys is origin.memory.keys
