"""Selecting rows of states."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.nn.state import select


@dataclass(frozen=True)
class Memory:
    keys: Tensor
    layers: tuple[Tensor, ...]


@dataclass(frozen=True)
class State:
    memory: Memory
    hidden: Tensor
    step: Tensor
    position: int = 0
    past: tuple[Tensor, ...] | None = None


def state() -> State:
    memory = Memory(torch.arange(6.0).view(3, 2), (torch.arange(3), torch.arange(9).view(3, 3)))
    return State(memory, torch.arange(12.0).view(3, 4), torch.tensor(5), 7)


def test_select_picks_rows_of_tensors_and_keeps_numbers():
    rows = torch.tensor([2, 0, 0, 1])
    actual = select(state(), rows)
    assert actual.memory.keys.equal(state().memory.keys[rows])
    assert [layer.tolist() for layer in actual.memory.layers] == [[2, 0, 0, 1], state().memory.layers[1][rows].tolist()]
    assert actual.hidden.equal(state().hidden[rows])
    assert (actual.step.item(), actual.position, actual.past) == (5, 7, None)


def test_select_keeps_shared_parts_and_picks_the_rest():
    initial = state()
    now = replace(initial, hidden=initial.hidden + 1, past=(initial.hidden + 2,), position=8)
    rows = torch.tensor([1, 1, 0])
    actual = select(now, rows, shared=initial)
    assert actual.memory is initial.memory
    assert actual.hidden.equal(now.hidden[rows])
    assert actual.past[0].equal(now.past[0][rows])
    mixed = replace(now, memory=Memory(initial.memory.keys + 1, initial.memory.layers))
    actual = select(mixed, rows, shared=initial)
    assert actual.memory.keys.equal(mixed.memory.keys[rows])
    assert actual.memory.layers is initial.memory.layers


def test_shared_parts_stay_shared():
    initial = state()
    now = replace(initial, hidden=initial.hidden + 1)
    rows = torch.tensor([2, 1])
    later, origin = select((now, initial), rows)
    assert later.memory is origin.memory
    assert later.memory.keys.equal(initial.memory.keys[rows])
    assert select(later, torch.tensor([0, 0]), shared=origin).memory is origin.memory
