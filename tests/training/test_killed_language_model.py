"""A language model's process, really killed: the state that it carried is not lost."""

import os
from pathlib import Path

import pytest
from safetensors.torch import load_file

from .test_killed import PATIENCE, assert_same_end, kill, newest, start, wait_for

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif("QKV_DATA" not in os.environ, reason="needs Tiny Shakespeare under QKV_DATA"),
]
RECIPE = [
    "model.hidden=32",
    "train.epochs=1",
    "train.batch_tokens=8192",
    "train.validate_every=100",
    "train.save_every=7",
]


def begin(folder: Path) -> object:
    return start("shakespeare-rnn", *(f"--set={assignment}" for assignment in RECIPE), "--out", folder)


def test_training_killed_three_times_ends_with_the_same_bits_as_training_left_alone(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    _, talk = begin(whole).communicate(timeout=PATIENCE)
    assert "1,003,854 tokens  vocabulary char (69)" in talk
    process = begin(parts)
    wait_for(lambda: newest(parts) != "", process)
    for _ in range(3):
        kill(process)
        reached = newest(parts)
        process = start("--resume", parts)
        wait_for(lambda reached=reached: newest(parts) > reached, process)
    _, talk = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, talk
    assert_same_end(whole, parts)
    assert load_file(parts / newest(parts) / "training.safetensors")["carried.hidden"].shape == (128, 1, 32)
