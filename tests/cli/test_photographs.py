"""Photographs from their archive to a caption: features, training, evaluation, and captions with their pages."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.datasets.test_captions import archived
from tests.hub.backbone import write_weights

from .command import Ended

Command = Callable[..., Ended]
SMALL = [
    "--set", "data.tokenizer.vocab_size=12", "--set", "train.epochs=1", "--set", "train.batch_size=4",
    "--set", "model.hidden_dim=8", "--set", "model.feature_dim=8", "--set", "model.embedding_dim=8",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small Flickr8k and a backbone of random weights."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("QKV_DATA", str(tmp_path))
    write_weights(tmp_path, monkeypatch)
    archived(tmp_path / "flickr8k")
    Image.new("RGB", (90, 60), "green").save(tmp_path / "photo.jpg")
    return tmp_path


@pytest.fixture
def run(qkv: Command, folder: Path) -> Path:
    computed = qkv("data", "features", "flickr8k", "--side", 64, "--json")
    assert json.loads(computed.out)["images"] == 6
    trained = qkv("train", "flickr8k-attend", *SMALL, "--output", folder / "run", "--device", "cpu")
    assert trained.code == 0, trained.err
    return folder / "run"


def test_a_photograph_is_captioned_by_a_model_of_features(qkv: Command, run: Path, folder: Path):
    scores = json.loads(qkv("evaluate", run, "--num-beams", 2, "--json").out)
    assert scores["bleu_1"] >= scores["bleu_2"] >= scores["bleu_3"] >= scores["bleu"]
    page, figure = folder / "page.html", folder / "figure.png"
    ended = qkv("caption", run, folder / "photo.jpg", "--json", "--page", page, "--png", figure)
    caption = json.loads(ended.out)
    assert caption["grid"] == [2, 2]
    assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in caption["attention"])
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    picture = json.loads(data)["examples"][0]["picture"]
    assert picture["width"] / picture["height"] == pytest.approx(1.5, abs=0.02)  # the aspect ratio of the photograph
    with Image.open(figure) as image:
        assert image.height > 60  # a row


def test_photographs_that_are_none_are_one_line_errors(qkv: Command, run: Path, folder: Path):
    (folder / "none.jpg").write_text("no picture")
    assert "none.jpg: not an image" in qkv("caption", run, folder / "none.jpg").error
    (folder / "half.jpg").write_bytes((folder / "photo.jpg").read_bytes()[:400])
    assert "half.jpg: truncated" in qkv("caption", run, folder / "half.jpg").error
    assert "gone.jpg: no such file" in qkv("caption", run, folder / "gone.jpg").error
    next(folder.rglob("*.pth")).unlink()
    assert "pip install" in qkv("caption", run, folder / "photo.jpg").error


def test_mistakes_in_computing_features_are_one_line_errors(qkv: Command, folder: Path):
    assert "no photographs" in qkv("data", "features", "shapes").error
    assert "multiple of 32" in qkv("data", "features", "flickr8k", "--side", 100).error
    assert "unknown backbone" in qkv("data", "features", "flickr8k", "--backbone", "vgg").error
    assert "qkv data features flickr8k" in qkv("train", "flickr8k-attend").error
    archive = folder / "flickr8k" / "dev.tar"
    archive.write_bytes(archive.read_bytes()[:700])
    assert "dev.tar: truncated" in qkv("data", "features", "flickr8k", "--side", 32).error
    assert not list(folder.rglob("*.safetensors"))
