"""Training on two processes with torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qkv.training import job
from qkv.training.run import Run

from . import killed_worker, parallel_worker

TIMEOUT = 300
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # so that torchrun --standalone can restart a group
}


def torchrun(*command: str | Path, processes: int = 2, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [*launcher, f"--max-restarts={restarts}", *map(str, command)],
        capture_output=True,
        text=True,
        env=os.environ | ENVIRONMENT,
        timeout=TIMEOUT,
    )


def losses(folder: Path) -> list[tuple[float, float]]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(record["loss"], record["norm"]) for record in records if record["kind"] == "train"]


def compare(folder: Path, names: list[str], steps: int) -> None:
    """Train with two processes, continue with one, and compare with one process alone."""
    recipes = parallel_worker.recipes(folder)
    done = torchrun(parallel_worker.__file__, folder, str(steps), *names)
    assert done.returncode == 0, done.stderr
    for name in names:
        checkpoint = Run.open(folder / name).checkpoints[-1]
        assert len([*checkpoint.glob("shard-*.safetensors")]) == 2
        with parallel_worker.limited(3):
            job.resume(folder / name, "cpu", ["train.epochs=101"])
        recipe, _, options = name.partition("-")
        ema = parallel_worker.OPTIONS[options].get("ema", 0.0)
        parallel_worker.train(recipes[recipe], folder / f"{name}-one", steps + 3, ema=ema)
        expected = losses(folder / f"{name}-one")
        assert len(expected) == steps + 3
        for (loss, norm), (expected_loss, expected_norm) in zip(losses(folder / name), expected, strict=True):
            assert loss == pytest.approx(expected_loss, abs=1e-5), name
            assert norm == pytest.approx(expected_norm, abs=1e-4), name
        print(name, max(abs(a - b) for (a, _), (b, _) in zip(losses(folder / name), expected, strict=True)))


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_which_can_continue_their_run(tmp_path, capsys):
    compare(tmp_path, ["gru-ddp", "gpt2-fsdp"], 8)
    assert "processes was 2 and is now 1" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_over_50_steps(tmp_path):
    models = ("gru", "gpt2", "rnn", "transformer")  # rnn carries the state of seven streams
    compare(tmp_path, [f"{model}-{options}" for model in models for options in parallel_worker.OPTIONS], 50)


ELASTIC = [
    "data.size=400", "model.hidden_dim=16", "model.embedding_dim=8", "model.dropout=0.1", "model.max_length=64",
    "train.epochs=2", "train.batch_size=512", "train.validate_every=15", "train.valid_size=4", "train.save_every=4",
]  # fmt: skip


def train_elastic(folder: Path, victim: int, step: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Train with two processes, and kill one of them after a step; torchrun restarts both."""
    sets = [f"--set={assignment}" for assignment in (*ELASTIC, *options)]
    command = ["train", "dates-gru", *sets, "--output", folder, "--device", "cpu"]
    return torchrun(killed_worker.__file__, str(victim), str(step), *command, restarts=2)


def checkpoint_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return weights, optimizer state and random state of the newest checkpoint, whole."""
    newest = Run.open(folder).checkpoints[-1]
    parts: dict[str, list[torch.Tensor]] = {"step": [torch.tensor([int(newest.name[5:])])]}
    for path in sorted(newest.glob("*.safetensors")):
        for name, value in load_file(path).items():
            parts.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else torch.cat(values) for name, values in parts.items()}


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_whose_worker_is_killed_ends_bit_for_bit_like_an_undisturbed_one(parallel, tmp_path):
    option = f"train.parallel={parallel}"
    done = train_elastic(tmp_path / "whole", 0, 0, option)
    assert done.returncode == 0, done.stderr
    expected = checkpoint_tensors(tmp_path / "whole")
    assert any("random.1." in name for name in expected)
    for number, step in enumerate([1, 3, 4, 5, 8, 11, 14, 15, 19, 22]):
        folder = tmp_path / str(step)
        done = train_elastic(folder, number % 2, step, option)
        assert done.returncode == 0, done.stderr
        assert "(exitcode: -9)" in done.stderr
        tensors = checkpoint_tensors(folder)
        assert tensors.keys() == expected.keys()
        assert all(tensors[name].equal(expected[name]) for name in expected), step
        assert not any(folder.glob(".writing-*"))
