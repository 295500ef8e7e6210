"""Training processes killed with real signals."""

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
    "model.hidden_dim=24",
    "model.embedding_dim=8",
    "model.dropout=0.1",
    "train.epochs=4",
    "train.batch_size=512",
    "train.validate_every=60",
    "train.valid_size=10",
    "train.save_every=4",
    "train.keep=2",
]
TIMEOUT = 120.0  # seconds


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "qkv", "train", *map(str, arguments), "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def begin(folder: Path) -> subprocess.Popen[str]:
    return start("dates-gru", *(f"--set={assignment}" for assignment in RECIPE), "--output", folder)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Poll every millisecond until a condition holds; fail if the process ends first."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        time.sleep(0.001)  # leave the CPU to the process
        assert process.poll() is None, f"the process ended too early: {process.communicate()}"
        assert time.monotonic() < deadline, "timed out"


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
    _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, stderr
    return folder


def assert_same_result(left: Path, right: Path) -> None:
    assert newest(left) == newest(right)
    for name in ("model.safetensors", "training.safetensors"):
        left_tensors, right_tensors = (load_file(folder / newest(folder) / name) for folder in (left, right))
        assert left_tensors.keys() == right_tensors.keys()
        for key in left_tensors:
            assert left_tensors[key].equal(right_tensors[key]), key
    steps = [[json.loads(line)["step"] for line in (f / "log.jsonl").read_text().splitlines()] for f in (left, right)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_training_killed_several_times_ends_bit_for_bit_like_uninterrupted_training(uninterrupted, tmp_path, kills):
    folder = tmp_path / "run"
    rng = random.Random(time.time_ns())
    process = begin(folder)
    wait_for(lambda: newest(folder) != "", process)
    for _ in range(kills):
        time.sleep(rng.uniform(0.0, 0.2))  # up to about twice the time between checkpoints
        kill(process)
        last = newest(folder)
        process = start("--resume", folder)
        wait_for(lambda last=last: newest(folder) > last, process)
    # Once more, while a checkpoint is being written; repeat if it was complete before the kill.
    wait_for(lambda: checkpoint_being_written(folder), process)
    kill(process)
    while not checkpoint_being_written(folder):
        process = start("--resume", folder)
        wait_for(lambda: checkpoint_being_written(folder), process)
        kill(process)
    process = start("--resume", folder)
    _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, stderr
    assert not any(folder.glob(".writing-*"))
    assert_same_result(uninterrupted, folder)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_ctrl_c_saves_and_prints_how_to_resume(number, uninterrupted, tmp_path):
    folder = tmp_path / "run"
    process = begin(folder)
    wait_for(lambda: newest(folder) != "", process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, stderr
    assert f"resume with: qkv train dates-gru --resume {folder}" in stderr
    assert "Traceback" not in stderr
    assert stdout.strip() == str(folder)
    process = start("dates-gru", "--resume", folder)
    _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, stderr
    assert_same_result(uninterrupted, folder)
