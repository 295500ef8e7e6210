"""A language model killed while training: its carried state is restored."""

import os

import pytest
from safetensors.torch import load_file

from .forked import OK
from .test_killed import SAVE, STEP, assert_same_result, newest, qkv_train, train_and_kill

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


def test_training_killed_three_times_ends_bit_for_bit_like_uninterrupted_training(tmp_path):
    whole, parts, messages = tmp_path / "whole", tmp_path / "parts", tmp_path / "messages"
    settings = [f"--set={assignment}" for assignment in RECIPE]
    assert qkv_train(messages, "shakespeare-rnn", *settings, "--output", whole) == OK, messages.read_text()
    assert "1,003,854 tokens  tokenizer char (69)" in messages.read_text()
    moments = [(STEP, 9), (SAVE, 14), (STEP, 23)]
    train_and_kill(messages, parts, ["shakespeare-rnn", *settings, "--output", parts], moments)
    assert_same_result(whole, parts)
    assert load_file(parts / newest(parts) / "training.safetensors")["carried.hidden"].shape == (128, 1, 32)
