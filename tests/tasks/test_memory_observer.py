"""Seeing a machine at work: what it was given, what it said, and where it wrote and read meanwhile."""

import numpy as np
import pytest
import torch

import qkv
from qkv.data.algorithmic import Copy, RepeatCopy
from qkv.errors import InputError
from qkv.interop.folder import save_model
from qkv.models.lstm_memory import Config as LSTMConfig
from qkv.models.lstm_memory import LSTMMemory
from qkv.models.ntm import NTM, Config
from qkv.tasks.memory_observer import MemoryObserver

PUZZLE = Copy(bits=3)


def machine() -> NTM:
    torch.manual_seed(0)
    return NTM(Config(5, 3, hidden=4, locations=7, width=2, read_heads=2)).eval()


def test_it_sees_the_weights_of_every_step_and_what_was_said():
    model = machine()
    seen = MemoryObserver(model, PUZZLE)((4,))
    assert seen.size == "4"
    assert seen.written.shape == (1, 10, 7)
    assert seen.read.shape == (2, 10, 7)
    x = torch.from_numpy(seen.inputs)[None]
    with qkv.watch(model) as watched, torch.no_grad():
        logits = model(x)[0]
    np.testing.assert_allclose(seen.said, logits.sigmoid().numpy(), atol=1e-6)
    np.testing.assert_allclose(seen.read, watched["read_heads"].weights[0].numpy(), atol=1e-6)
    wrong = sum(
        (seen.said[step, bit] > 0.5) != bool(seen.targets[step, bit]) for step in range(6, 10) for bit in range(3)
    )
    assert seen.wrong == wrong
    assert (MemoryObserver(model, PUZZLE)((4,), number=1).inputs != seen.inputs).any()


def test_a_machine_for_another_puzzle_and_a_network_without_memory_are_refused_in_words(tmp_path):
    with pytest.raises(InputError, match="was made for 5 numbers in and 3 out at each step, and this puzzle has 10"):
        MemoryObserver(machine(), RepeatCopy())
    save_model(LSTMMemory(LSTMConfig(5, 3)), None, tmp_path)
    with pytest.raises(InputError, match="holds LSTMMemory, which has no memory to look at"):
        MemoryObserver(tmp_path, PUZZLE, "cpu")
