"""How tests stop a run, and what they see of it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qkv.training.run import Run


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Make the loop find Ctrl-C pressed after so many steps."""
    asked = iter([False] * (steps - 1) + [True] * 1000)
    monkeypatch.setattr("qkv.training.interrupt.Interrupt.__bool__", lambda self: next(asked))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Weights, optimizer state and random state of a run's newest checkpoint."""
    newest = Run.open(folder).checkpoints[-1]
    return load_file(newest / "model.safetensors") | load_file(newest / "training.safetensors")


def assert_bit_equal(left: Path, right: Path) -> None:
    one, other = tensors(left), tensors(right)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].equal(other[name]), name
