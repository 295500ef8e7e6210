"""A language model killed while training: its carried state is restored."""

import os
from pathlib import Path

import pytest
from safetensors.torch import load_file

from .test_killed import TIMEOUT, assert_same_result, kill, newest, start, wait_for

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif("QKV_DATA" not in os.environ, reason="needs Tiny Shakespeare under QKV_DATA"),
]
RECIPE = [
    "model.hidden_dim=32",
    "train.epochs=1",
    "train.batch_size=8192",
    "train.validate_every=100",
    "train.save_every=7",
]


def begin(folder: Path) -> object:
    return start("shakespeare-rnn", *(f"--set={assignment}" for assignment in RECIPE), "--output", folder)


def test_training_killed_three_times_ends_bit_for_bit_like_uninterrupted_training(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    _, stderr = begin(whole).communicate(timeout=TIMEOUT)
    assert "1,003,854 tokens  tokenizer char (69)" in stderr
    process = begin(parts)
    wait_for(lambda: newest(parts) != "", process)
    for _ in range(3):
        kill(process)
        last = newest(parts)
        process = start("--resume", parts)
        wait_for(lambda last=last: newest(parts) > last, process)
    _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, stderr
    assert_same_result(whole, parts)
    assert load_file(parts / newest(parts) / "training.safetensors")["carried.hidden"].shape == (128, 1, 32)
