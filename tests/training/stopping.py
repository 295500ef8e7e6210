"""Helpers that interrupt a run and compare its checkpoints."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qkv.training.run import Run


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Simulate Ctrl-C after `steps` steps."""
    interrupted = iter([False] * (steps - 1) + [True] * 1000)
    monkeypatch.setattr("qkv.training.loop.Interrupt.__bool__", lambda self: next(interrupted))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return weights, optimizer state and random state of a run's newest checkpoint."""
    newest = Run.open(folder).checkpoints[-1]
    return load_file(newest / "model.safetensors") | load_file(newest / "training.safetensors")


def assert_bit_equal(left: Path, right: Path) -> None:
    left_tensors, right_tensors = tensors(left), tensors(right)
    assert left_tensors.keys() == right_tensors.keys()
    for name in left_tensors:
        assert left_tensors[name].equal(right_tensors[name]), name
