"""States picked by rows."""

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


def test_every_tensor_is_picked_by_rows_and_numbers_stay():
    rows = torch.tensor([2, 0, 0, 1])
    found = select(state(), rows)
    assert found.memory.keys.equal(state().memory.keys[rows])
    assert [layer.tolist() for layer in found.memory.layers] == [[2, 0, 0, 1], state().memory.layers[1][rows].tolist()]
    assert found.hidden.equal(state().hidden[rows])
    assert (found.step.item(), found.position, found.past) == (5, 7, None)


def test_what_another_state_holds_too_is_not_copied_and_all_else_is_picked():
    begun = state()
    now = replace(begun, hidden=begun.hidden + 1, past=(begun.hidden + 2,), position=8)
    rows = torch.tensor([1, 1, 0])
    found = select(now, rows, but=begun)
    assert found.memory is begun.memory
    assert found.hidden.equal(now.hidden[rows])
    assert found.past[0].equal(now.past[0][rows])
    mixed = replace(now, memory=Memory(begun.memory.keys + 1, begun.memory.layers))
    found = select(mixed, rows, but=begun)
    assert found.memory.keys.equal(mixed.memory.keys[rows])
    assert found.memory.layers is begun.memory.layers


def test_two_states_that_share_a_part_share_it_afterwards():
    begun = state()
    now = replace(begun, hidden=begun.hidden + 1)
    rows = torch.tensor([2, 1])
    later, origin = select((now, begun), rows)
    assert later.memory is origin.memory
    assert later.memory.keys.equal(begun.memory.keys[rows])
    assert select(later, torch.tensor([0, 0]), but=origin).memory is origin.memory
