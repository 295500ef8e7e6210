"""Runs that are killed at random moments, and checkpoints that cannot be written."""

import os
import random
import resource
import shutil
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from qkv.datasets.dataset import ImageDataset
from qkv.datasets.formats.images import LabeledImages
from qkv.errors import InputError
from qkv.hub.checkpoint_manifest import read_manifest
from qkv.registry import lookup
from qkv.training import job
from qkv.training.recipe import Recipe, read_recipe
from qkv.training.run import Run

from .conftest import TINY
from .forked import FAILED, OK, fork, kill_when, wait, wait_until
from .parallel_worker import recipes as text_recipes
from .stopping import assert_bit_equal, stop_after

KILLS, INSIDE_A_SAVE = 20, 6
TRAIN = ["train.save_every=3", "train.validate_every=50", "train.warmup=5", "train.decay=cosine"]
SIZES = ["model.dim=32", "model.heads=2", "model.dropout=0.1"]


def kill_recipes(folder: Path) -> dict[str, Recipe]:
    gpt = text_recipes(folder)["gpt2"]
    gpt = gpt.replace(
        model=gpt.model.replace(dropout=0.1),
        train=gpt.train.replace(epochs=3, save_every=3, validate_every=50, decay="cosine"),
    )
    return {
        "gru": read_recipe("dates-gru", [*TINY, *TRAIN, "data.size=400", "train.epochs=7"]),
        "transformer": read_recipe(
            "dates-transformer",
            [*TRAIN, *SIZES, "data.size=400", "train.epochs=7", "model.ffn_dim=64", "train.batch_size=256",
             "train.valid_size=4"],
        ),
        "gpt2": gpt,
        "vit": read_recipe(
            "fashion-vit", [*TRAIN, *SIZES[:2], "model.ffn_dim=32", "model.stem=[4]", "task.cutout=2",
                            "train.epochs=12", "train.batch_size=16"],
        ),
    }  # fmt: skip


@pytest.fixture
def _pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (240, 1, 8, 8), dtype=np.uint8)
    pictures = LabeledImages(pixels, np.arange(240) % 3, ("a", "b", "c"))
    data = ImageDataset({"train": pictures, "valid": pictures[:8]})
    monkeypatch.setattr(lookup("dataset", "fashion_mnist"), "read", lambda self: data)


def newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("step-*")), default="")


def is_later(moment: float) -> bool:
    return time.monotonic() > moment


def is_newer(folder: Path, last: str) -> bool:
    return newest(folder) > last


def being_written(folder: Path) -> bool:
    return any(folder.glob(".writing-[0-9]*-step-*/*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "transformer", "gpt2", "vit"])
@pytest.mark.usefixtures("_pictures")
def test_a_run_killed_twenty_times_ends_bit_for_bit_like_an_undisturbed_one(name, tmp_path):
    recipe = kill_recipes(tmp_path)[name]
    whole, parts, messages = tmp_path / "whole", tmp_path / "parts", tmp_path / "messages"
    assert wait(fork(lambda: job.begin(recipe, whole, "cpu"), messages)) == OK, messages.read_text()
    state = read_manifest(Run.open(whole).checkpoints[-1])["state"]
    seconds = state["seconds"] / state["step"] * recipe.train.save_every  # between two checkpoints
    seed = time.time_ns()
    rng = random.Random(seed)
    inside = 0

    def begin_or_resume() -> None:
        if (parts / "manifest.json").exists():
            job.resume(parts, "cpu")
        else:
            job.begin(recipe, parts, "cpu")

    for number in range(KILLS):
        pid = fork(begin_or_resume, messages)
        if number < 2:  # before the first checkpoint
            assert kill_when(pid, partial(is_later, time.monotonic() + rng.uniform(0.0, 1.0)))
        elif inside < INSIDE_A_SAVE:
            assert kill_when(pid, lambda: being_written(parts)), messages.read_text()
            inside += being_written(parts)
        else:
            last = newest(parts)
            assert wait_until(pid, partial(is_newer, parts, last)), messages.read_text()
            assert kill_when(pid, partial(is_later, time.monotonic() + rng.uniform(0.0, 2 * seconds)))
    assert wait(fork(lambda: job.resume(parts, "cpu"), messages)) == OK, messages.read_text()
    assert inside >= INSIDE_A_SAVE, f"seed {seed}"
    assert_bit_equal(whole, parts)
    assert not any(parts.glob(".writing-*"))


def assert_resumable(folder: Path, whole: job.Job) -> None:
    """The last complete checkpoint loads, nothing else is left, and the run ends as if nothing had happened."""
    run = Run.open(folder)
    run.verify(run.checkpoints[-1])
    assert not any(folder.glob(".writing-*"))
    assert job.resume(folder, "cpu").state.finished
    assert_bit_equal(whole.run.folder, folder)


@pytest.mark.parametrize("offsets", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_checkpoint_that_cannot_be_written_to_its_end_leaves_the_previous_one(stopped, whole, tmp_path, offsets):
    """A limit on the size of files stops the write at some offsets."""
    checkpoints = Run.open(stopped).checkpoints
    size = (checkpoints[-1] / "training.safetensors").stat().st_size
    for number in range(offsets):
        folder, limit = tmp_path / str(number), 8192 + number * (size - 8192) // offsets

        shutil.copytree(stopped, folder)

        def resume(folder: Path = folder, limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            job.resume(folder, "cpu")

        messages = tmp_path / f"messages-{number}"
        assert wait(fork(resume, messages)) == FAILED
        error = messages.read_text().splitlines()[-1]
        assert error.startswith("InputError: ")
        assert "cannot be written" in error
        if number == 0:
            assert_resumable(folder, whole)
        else:
            assert not any(folder.glob(".writing-*"))
            Run.verify(Run.open(folder).checkpoints[-1])


@pytest.mark.slow
def test_a_full_disk_leaves_the_previous_checkpoint(stopped, whole, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    used = sum(-(-path.stat().st_size // 4096) for path in stopped.rglob("*")) + len([*stopped.rglob("*")])
    checkpoint = sum(-(-path.stat().st_size // 4096) for path in Run.open(stopped).checkpoints[-1].iterdir())
    for number in range(10):
        pages = used + 4 + number * (checkpoint - 2) // 10
        command = ["mount", "-t", "tmpfs", "-o", f"size={pages * 4096}", "tmpfs", str(disk)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("needs the right to mount a tmpfs")
        try:
            shutil.copytree(stopped, disk / "run")
            messages = tmp_path / f"messages-{number}"
            assert wait(fork(lambda: job.resume(disk / "run", "cpu"), messages)) == FAILED, pages
            error = messages.read_text().splitlines()[-1]
            assert "No space left" in error
            assert error.startswith("InputError: ")
            assert not any((disk / "run").glob(".writing-*"))
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            assert_resumable(disk / "run", whole)
        finally:
            subprocess.run(["umount", str(disk)], check=True)


def test_an_error_of_the_writer_ends_training_at_the_next_step(short, tmp_path, monkeypatch):
    """The error is raised by the training loop, and the run can be resumed."""
    from qkv.training import checkpoint

    write, calls = checkpoint.write_tensors, []

    def fail_after_the_first(*arguments):
        calls.append(1)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(checkpoint, "write_tensors", fail_after_the_first)
    with pytest.raises(InputError, match=r"step-0.*No space left"):
        job.begin(short, tmp_path / "run", "cpu")
    run = Run.open(tmp_path / "run")
    assert [path.name for path in run.checkpoints] == ["step-00000003"]
    monkeypatch.setattr(checkpoint, "write_tensors", write)
    assert job.resume(tmp_path / "run", "cpu").state.finished


def test_a_folder_that_becomes_read_only_is_a_clear_error(stopped, monkeypatch):
    if os.geteuid() == 0:
        pytest.skip("root can write everywhere")
    stopped.chmod(0o500)
    try:
        with pytest.raises(InputError, match="cannot be written"):
            job.resume(stopped, "cpu")
    finally:
        stopped.chmod(0o700)


def test_checkpoints_are_written_while_training_continues(tiny, tmp_path, monkeypatch):
    """The first write ends only after another step; it would time out if training waited for it."""
    from qkv.training import checkpoint, loop

    events: list[str] = []
    stepped = threading.Event()
    write, advance = checkpoint.write_tensors, loop.Trainer.advance

    def slow(*arguments):
        stepped.clear()
        events.append("write")
        if events.count("write") == 1:
            assert stepped.wait(120)
        write(*arguments)
        events.append("written")

    def step(trainer, *arguments):
        events.append("step")
        stepped.set()
        advance(trainer, *arguments)

    monkeypatch.setattr(checkpoint, "write_tensors", slow)
    monkeypatch.setattr(loop.Trainer, "advance", step)
    stop_after(monkeypatch, 5)
    job.begin(tiny, tmp_path / "run", "cpu")
    first = events.index("write")
    assert "step" in events[first : events.index("written")]
    assert events[-1] == "written"  # the end waits for the last checkpoint


def test_resume_auto_finds_the_newest_unfinished_run_of_the_recipe(tiny, stopped, whole, tmp_path):
    other, finished = tiny.replace(seed=5), whole.run.folder
    assert job.unfinished(tiny, [stopped, finished, tmp_path]) == stopped
    assert job.unfinished(other, [stopped, finished]) is None
    assert job.unfinished(tiny, [finished, tmp_path / "none"]) is None
    assert job.unfinished(tiny, [finished]) == finished  # --output: a finished run has nothing left to do
    newer = shutil.copytree(stopped, tmp_path / "newer")
    (Run.open(newer).checkpoints[-1]).touch()
    assert job.unfinished(tiny, [newer, stopped]) == newer


def test_strict_resume_rejects_another_environment(stopped, monkeypatch):
    monkeypatch.setattr("qkv.runtime.provenance.device_name", lambda device: "another CPU, 64 threads")
    with pytest.raises(InputError, match="64 threads"):
        job.resume(stopped, "cpu", strict=True)
    stop_after(monkeypatch, 1)
    assert "another CPU, 64 threads" in job.resume(stopped, "cpu").state.devices
