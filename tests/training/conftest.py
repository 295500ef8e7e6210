"""Recipes that train in a second."""

import random
import shutil
from pathlib import Path

import pytest

from qkv.datasets.dataset import TextDataset
from qkv.registry import lookup
from qkv.training import job
from qkv.training.job import Job
from qkv.training.recipe import Recipe, read_recipe

from .stopping import stop_after

TINY = [
    "data.size=120",
    "model.hidden_dim=16",
    "model.embedding_dim=8",
    "model.dropout=0.1",
    "model.max_length=48",
    "train.epochs=3",
    "train.batch_size=256",
    "train.warmup=5",
    "train.lr=0.005",
    "train.validate_every=4",
    "train.save_every=3",
    "train.valid_size=10",
]
TINY_TEXT = [
    "model.hidden_dim=16",
    "model.embedding_dim=8",
    "model.layers=2",
    "model.dropout=0.1",
    "train.epochs=3",
    "train.batch_size=64",
    "task.length=16",
    "train.warmup=5",
    "train.lr=0.005",
    "train.validate_every=4",
    "train.save_every=3",
]


@pytest.fixture(scope="session")
def tiny() -> Recipe:
    return read_recipe("dates-gru", TINY)


@pytest.fixture(scope="session")
def short(tiny: Recipe) -> Recipe:
    """One epoch of it: eleven steps, with checkpoints at steps 3, 6 and 9 and validations at steps 4 and 8."""
    return tiny.replace(train=tiny.train.replace(epochs=1))


@pytest.fixture(scope="session")
def whole(tiny: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """An uninterrupted run, for tests that do not modify it."""
    return job.begin(tiny, tmp_path_factory.mktemp("whole") / "run", "cpu")


@pytest.fixture
def tiny_text(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A language model on four random words instead of Shakespeare."""
    words = random.Random(0).choices(["to ", "be ", "or ", "not "], k=200)
    texts = {"train": "".join(words[:180]), "valid": "".join(words[180:])}
    monkeypatch.setattr(lookup("dataset", "tinyshakespeare"), "read", lambda self: TextDataset(texts))
    return read_recipe("shakespeare-lstm", TINY_TEXT)


@pytest.fixture(scope="session")
def _stopped(tiny, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 4)
        job.begin(tiny, folder, "cpu")
    return folder


@pytest.fixture
def stopped(_stopped, tmp_path) -> Path:
    """A copy of a run that was stopped after four steps."""
    return shutil.copytree(_stopped, tmp_path / "run")
