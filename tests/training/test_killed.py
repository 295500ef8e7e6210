"""Real processes, really killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

RECIPE = [
    "data.size=1500",
    "model.hidden=24",
    "model.embedding=8",
    "model.dropout=0.1",
    "train.epochs=4",
    "train.batch_tokens=512",
    "train.validate_every=60",
    "train.valid_size=10",
    "train.save_every=4",
    "train.keep=2",
]
PATIENCE = 120.0  # seconds


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "qkv", "train", *map(str, arguments), "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def begin(folder: Path) -> subprocess.Popen[str]:
    return start("dates-gru", *(f"--set={assignment}" for assignment in RECIPE), "--out", folder)


def wait_for(seen: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Look every millisecond until something is seen; a process that ends first fails the test."""
    deadline = time.monotonic() + PATIENCE
    while not seen():
        time.sleep(0.001)  # without it, looking would take a core from who is looked at
        assert process.poll() is None, f"the process ended too early: {process.communicate()}"
        assert time.monotonic() < deadline, "waited in vain"


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def checkpoint_being_written(folder: Path) -> bool:
    return any(path.name.endswith(".safetensors") for path in folder.glob(".writing-[0-9]*-step-*/*"))


def newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("step-*")), default="")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    process = begin(folder)
    _, talk = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, talk
    return folder


def assert_same_end(left: Path, right: Path) -> None:
    assert newest(left) == newest(right)
    for name in ("model.safetensors", "training.safetensors"):
        one, other = (load_file(folder / newest(folder) / name) for folder in (left, right))
        assert one.keys() == other.keys()
        for key in one:
            assert one[key].equal(other[key]), key
    steps = [[json.loads(line)["step"] for line in (f / "log.jsonl").read_text().splitlines()] for f in (left, right)]
    assert steps[0] == steps[1]


def test_training_killed_five_times_ends_with_the_same_bits_as_training_left_alone(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    chance = random.Random(time.time_ns())
    process = begin(folder)
    wait_for(lambda: newest(folder) != "", process)
    for _ in range(4):
        time.sleep(chance.uniform(0.0, 0.2))  # the time from one checkpoint to the next, and as much again
        kill(process)
        reached = newest(folder)
        process = start("--resume", folder)
        wait_for(lambda reached=reached: newest(folder) > reached, process)
    # The fifth time, inside the writing of a checkpoint; again, if it was finished before the kill came.
    wait_for(lambda: checkpoint_being_written(folder), process)
    kill(process)
    while not checkpoint_being_written(folder):
        process = start("--resume", folder)
        wait_for(lambda: checkpoint_being_written(folder), process)
        kill(process)
    process = start("--resume", folder)
    _, talk = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, talk
    assert not any(folder.glob(".writing-*"))
    assert_same_end(uninterrupted, folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_says_how_to_go_on_and_loses_nothing(number, uninterrupted, tmp_path):
    folder = tmp_path / "run"
    process = begin(folder)
    wait_for(lambda: newest(folder) != "", process)
    process.send_signal(number)
    said, talk = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, talk
    assert f"go on with: qkv train dates-gru --resume {folder}" in talk
    assert "Traceback" not in talk
    assert said.strip() == str(folder)
    process = start("dates-gru", "--resume", folder)
    _, talk = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, talk
    assert_same_end(uninterrupted, folder)
