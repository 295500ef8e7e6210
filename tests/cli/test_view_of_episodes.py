"""`qkv evaluate` and `qkv view` for few-shot classification and bandits."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from qkv.cli.main import app
from qkv.datasets.dataset import EpisodeDataset
from qkv.datasets.examples.episodes import FewShotDataset
from qkv.errors import InputError
from qkv.registry import lookup
from qkv.training import job
from qkv.training.recipe import read_recipe
from tests.visualize.payloads import stored


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 3, 1, 4, 4), dtype=np.uint8)
    data = EpisodeDataset(dict.fromkeys(("train", "valid", "test"), FewShotDataset(pixels, tuple("abcdef"), 5, 1)))
    monkeypatch.setattr(lookup("dataset", "omniglot"), "read", lambda _: data)
    sizes = ["conv_channels=4", "conv_layers=1", "image_dim=4", "key_dims=[4,4]", "value_dims=[4,4]", "filters=4"]
    train = ["epochs=1", "batch_size=6", "valid_size=5"]
    changes = [*(f"model.{size}" for size in sizes), *(f"train.{one}" for one in train)]
    job.begin(read_recipe("omniglot-snail-5way", changes), tmp_path / "run", "cpu")
    return tmp_path / "run"


def test_test_episodes_are_scored_with_a_margin_and_viewed_by_number(run: Path):
    scored = CliRunner().invoke(app, ["evaluate", str(run), "--json", "--device", "cpu"], catch_exceptions=False)
    report = json.loads(scored.stdout)
    assert report["split"] == "test"
    assert report["size"] == 1000
    assert 0 < report["margin"] < 0.05
    page, png = run / "page.html", run / "one.png"
    options = ["--page", str(page), "--png", str(png), "--device", "cpu"]
    seen = CliRunner().invoke(app, ["view", str(run), "7", "3", *options], catch_exceptions=False)
    assert "trunk.2" in seen.stdout
    assert [example["source"] for example in stored(page)["examples"]] == ["episode 7", "episode 3"]
    assert len(stored(page)["examples"][0]["episode"]["images"]) == 6
    assert png.stat().st_size > 0


def test_an_invalid_episode_number_is_an_error(run: Path):
    with pytest.raises(InputError, match="numbers of test"):
        CliRunner().invoke(app, ["view", str(run), "a text"], catch_exceptions=False)


def test_bandit_games_are_viewed_by_number(tmp_path: Path):
    sizes = ["data.arms=2", "data.pulls=4", "model.key_dims=[4, 4]", "model.value_dims=[4, 4]", "model.filters=4"]
    short = ["train.epochs=1", "train.batch_size=4096", "train.valid_size=10"]
    job.begin(read_recipe("bandit-snail", [*sizes, *short]), tmp_path / "run", "cpu")
    view = ["view", str(tmp_path / "run"), "7", "3", "--page", str(tmp_path / "page.html"), "--device", "cpu"]
    seen = CliRunner().invoke(app, view, catch_exceptions=False)
    assert seen.stdout.count("arm") >= 4
    assert "game 7" in (tmp_path / "page.html").read_text()
    assert "game 3" in (tmp_path / "page.html").read_text()
    with pytest.raises(InputError, match="numbers of test"):
        CliRunner().invoke(app, ["view", str(tmp_path / "run"), "arms"], catch_exceptions=False)
    with pytest.raises(InputError, match="--num-beams"):
        CliRunner().invoke(app, ["view", str(tmp_path / "run"), "--num-beams", "2"], catch_exceptions=False)
