"""Classifying pictures: the labels are those of the model's logits, one by one as many at once."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from qkv.cli.main import app
from qkv.errors import InputError
from qkv.interop import save_model
from qkv.models.vit import Config, ViT
from qkv.tasks import picture_classifier
from qkv.tasks.image_classification import scaled
from qkv.tasks.picture_classifier import PictureClassifier
from qkv.tasks.picture_observer import PictureObserver

NAMES = ("boot", "coat", "hat")


@pytest.fixture
def model() -> ViT:
    torch.manual_seed(0)
    config = Config(classes=3, label_names=NAMES, channels=1, height=8, width=8, patch=4, dim=8, heads=2, layers=1)
    model = ViT(config).eval()
    torch.nn.init.normal_(model.head.weight)
    return model


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    chance = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for path in paths:
        Image.fromarray(chance.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    return paths


def test_a_picture_is_what_its_logits_say_also_among_others(model, pictures, monkeypatch):
    monkeypatch.setattr(picture_classifier, "AT_ONCE", 2)
    found = PictureClassifier(model).classify(pictures)
    assert [one.text for one in found] == [str(path) for path in pictures]
    for path, one in zip(pictures, found, strict=True):
        pixels = torch.from_numpy(np.array(Image.open(path)))[None, None]
        with torch.no_grad():
            expected = dict(zip(NAMES, model(scaled(pixels))[0].softmax(dim=-1).tolist(), strict=True))
        assert one.label == max(expected, key=expected.__getitem__)
        assert one.probabilities == pytest.approx(expected, abs=1e-6)
        assert [*one.probabilities.values()] == sorted(one.probabilities.values(), reverse=True)


def test_the_command_takes_pictures_for_a_vit(model, pictures, tmp_path):
    folder = tmp_path / "vit"
    folder.mkdir()
    save_model(model, None, folder)
    named = CliRunner().invoke(app, ["classify", str(folder), *map(str, pictures), "--json"], catch_exceptions=False)
    answers = [json.loads(line) for line in named.stdout.splitlines()]
    assert [one["picture"] for one in answers] == [str(path) for path in pictures]
    assert [one["label"] for one in answers] == [one.label for one in PictureClassifier(model).classify(pictures)]
    (tmp_path / "list.txt").write_text("".join(f"{path}\n" for path in pictures))
    listed = ["classify", str(folder), "--input", str(tmp_path / "list.txt"), "--json"]
    assert CliRunner().invoke(app, listed, catch_exceptions=False).stdout == named.stdout
    with pytest.raises(InputError, match=r"none\.png"):
        CliRunner().invoke(app, ["classify", str(folder), str(pictures[0]), "none.png"], catch_exceptions=False)
    with pytest.raises(InputError, match="give the names of pictures"):
        CliRunner().invoke(app, ["classify", str(folder), "--document", str(pictures[0])], catch_exceptions=False)


def test_classes_of_one_name_are_told_apart(model, pictures):
    same = ViT(replace(model.config, label_names=("crane", "dog", "crane"))).eval()
    same.load_state_dict(model.state_dict())
    found, expected = (PictureClassifier(one)(pictures[0]).probabilities for one in (same, model))
    names = dict(zip(("crane", "dog", "crane (2)"), NAMES, strict=True))
    assert {names[name]: value for name, value in found.items()} == expected


@pytest.mark.parametrize(
    ("said", "by_hand"),
    [
        ({"image_mean": [0.2], "image_std": [0.4]}, lambda pixels: (pixels / 255 - 0.2) / 0.4),
        ({"do_normalize": False}, lambda pixels: pixels / 255),
        ({}, lambda pixels: pixels / 127.5 - 1),
    ],
)
def test_pictures_are_scaled_as_a_released_folder_says(model, pictures, tmp_path, said, by_hand):
    folder = tmp_path / "vit"
    folder.mkdir()
    save_model(model, None, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    pixels = torch.from_numpy(np.array(Image.open(pictures[0])))[None, None].float()
    with torch.no_grad():
        expected = model(by_hand(pixels))[0].softmax(dim=-1).max()
    assert max(PictureClassifier(folder)(pictures[0]).probabilities.values()) == pytest.approx(
        float(expected), abs=1e-6
    )
    assert math.exp(PictureObserver(folder)(pictures[0]).score) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(
    "said",
    [
        {"image_mean": [0.1, 0.2]},
        {"image_std": 3},
        {"image_std": [0.0]},
        {"rescale_factor": 1.0},
        {"image_mean": ["a"]},
    ],
)
def test_a_scale_that_makes_no_sense_is_refused(model, tmp_path, said):
    save_model(model, None, tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    with pytest.raises(InputError, match=r"preprocessor_config\.json"):
        PictureClassifier(tmp_path)


def test_a_vit_without_classes_is_refused():
    with pytest.raises(InputError, match="has no head for classes"):
        PictureClassifier(ViT(Config(channels=1, height=8, width=8, patch=4, dim=8, heads=2, layers=1)))
