"""The command line, killed or interrupted by real signals, which it sends to itself at chosen moments."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qkv.cli.main import main
from qkv.training import checkpoint, loop

from .conftest import TINY
from .forked import OK, fork, wait

RECIPE = [*TINY, "train.epochs=2", "train.validate_every=10", "train.save_every=4", "train.keep=2"]
STEP, SAVE = "after a step", "in a save"
Moment = tuple[str, int]  # one of these, and the number of the step


def send_at(number: signal.Signals, moment: str, step: int) -> None:
    """Let this process send itself a signal after a step, or while the checkpoint of a step is written."""
    advance, write = loop.Trainer.advance, checkpoint.write_tensors

    def advance_then_send(trainer: loop.Trainer, *arguments: object) -> None:
        advance(trainer, *arguments)
        if trainer.state.step == step:
            os.kill(os.getpid(), number)

    def write_then_send(tensors: object, path: Path) -> None:
        write(tensors, path)
        if path.parent.name.endswith(f"-step-{step:08d}"):
            os.kill(os.getpid(), number)

    if moment == STEP:
        loop.Trainer.advance = advance_then_send
    else:
        checkpoint.write_tensors = write_then_send


def qkv_train(messages: Path, *arguments: str | Path, sending: tuple[signal.Signals, str, int] | None = None) -> int:
    """Run `qkv train` in a process of its own, which appends its output to a file; return its exit code."""

    def work() -> None:
        torch.set_num_threads(1)
        if sending is not None:
            send_at(*sending)
        sys.argv = ["qkv", "train", *map(str, arguments), "--device", "cpu"]
        main()

    return wait(fork(work, messages))


def new_run(folder: Path) -> list[str | Path]:
    return ["dates-gru", *(f"--set={assignment}" for assignment in RECIPE), "--output", folder]


def train_and_kill(messages: Path, folder: Path, arguments: list[str | Path], moments: list[Moment]) -> None:
    """Kill a run at each of these moments, and resume it each time until it ends."""
    for moment, step in moments:
        assert qkv_train(messages, *arguments, sending=(signal.SIGKILL, moment, step)) == -signal.SIGKILL
        assert any(folder.glob(f".writing-*-step-{step:08d}/training.safetensors")) == (moment == SAVE)
        arguments = ["--resume", folder]
    assert qkv_train(messages, *arguments) == OK, messages.read_text()
    assert not any(folder.glob(".writing-*"))


def newest(folder: Path) -> str:
    return max(path.name for path in folder.glob("step-*"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert qkv_train(folder / "messages", *new_run(folder / "run")) == OK, (folder / "messages").read_text()
    assert newest(folder / "run") > "step-00000012"
    return folder / "run"


def assert_same_result(left: Path, right: Path) -> None:
    assert newest(left) == newest(right)
    for name in ("model.safetensors", "training.safetensors"):
        left_tensors, right_tensors = (load_file(folder / newest(folder) / name) for folder in (left, right))
        assert left_tensors.keys() == right_tensors.keys()
        for key in left_tensors:
            assert left_tensors[key].equal(right_tensors[key]), key
    steps = [[json.loads(line)["step"] for line in (f / "log.jsonl").read_text().splitlines()] for f in (left, right)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize(
    "moments",
    [
        [(STEP, 2), (STEP, 7), (SAVE, 12)],
        pytest.param(
            [(SAVE, 4), (STEP, 4), (STEP, 5), (SAVE, 8), (SAVE, 8), (STEP, 11), (SAVE, 12), (STEP, 15)],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["three times", "eight times"],
)
def test_training_killed_several_times_ends_bit_for_bit_like_uninterrupted_training(uninterrupted, tmp_path, moments):
    train_and_kill(tmp_path / "messages", tmp_path / "run", new_run(tmp_path / "run"), moments)
    assert_same_result(uninterrupted, tmp_path / "run")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_ctrl_c_saves_and_prints_how_to_resume(number, uninterrupted, tmp_path):
    folder, messages = tmp_path / "run", tmp_path / "messages"
    assert qkv_train(messages, *new_run(folder), sending=(number, STEP, 6)) == 130, messages.read_text()
    assert newest(folder) == "step-00000006"
    text = messages.read_text()
    assert re.search(rf"stopped: saved \S+step-00000006 .*resume with: qkv train --resume {folder}\n", text)
    assert "Traceback" not in text
    assert f"{folder}\n" in text.splitlines(keepends=True)
    assert qkv_train(messages, "dates-gru", "--resume", folder) == OK, messages.read_text()
    assert_same_result(uninterrupted, folder)
