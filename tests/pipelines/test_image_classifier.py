"""Image classification pipeline: labels equal the model's logits, alone and in batches."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from qkv.cli.main import app
from qkv.errors import InputError
from qkv.hub import save_model
from qkv.interpret.image_probe import PictureProbe
from qkv.models.vit import ViT, ViTConfig
from qkv.pipelines.image_classifier import ImageClassifier
from qkv.pipelines.inputs.image_preprocessing import scale_pixels

NAMES = ("boot", "coat", "hat")


@pytest.fixture
def model() -> ViT:
    torch.manual_seed(0)
    config = ViTConfig(
        classes=3, label_names=NAMES, channels=1, height=8, width=8, patch=4, dim=8, heads=2, layers=1, ffn_dim=32
    )
    model = ViT(config).eval()
    torch.nn.init.normal_(model.head.weight)
    return model


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    return paths


def test_labels_equal_the_logits_in_any_batch(model, pictures):
    results = ImageClassifier(model)(pictures, batch_size=2)
    assert [result.text for result in results] == [str(path) for path in pictures]
    for path, result in zip(pictures, results, strict=True):
        pixels = torch.from_numpy(np.array(Image.open(path)))[None, None]
        with torch.no_grad():
            expected = dict(zip(NAMES, model(scale_pixels(pixels))[0].softmax(dim=-1).tolist(), strict=True))
        assert result.label == max(expected, key=expected.__getitem__)
        assert result.probabilities == pytest.approx(expected, abs=1e-6)
        assert [*result.probabilities.values()] == sorted(result.probabilities.values(), reverse=True)


def test_an_image_in_memory_has_the_label_of_its_file(model, pictures):
    with Image.open(pictures[0]) as opened:
        one = ImageClassifier(model)(opened)
        view = PictureProbe(model)(opened)
    of_file = ImageClassifier(model)(pictures[0])
    assert (one.text, one.probabilities) == (str(pictures[0]), of_file.probabilities)
    assert view.text == PictureProbe(model)(pictures[0]).text
    assert ImageClassifier(model)(Image.new("RGBA", (4, 4))).text == "image"
    pixels = np.array(Image.open(pictures[0]))
    assert ImageClassifier(model)(pixels).probabilities == of_file.probabilities
    with pytest.raises(InputError, match="uint8"):
        ImageClassifier(model)(np.zeros((8, 8)))


def test_the_classify_command_takes_pictures(model, pictures, tmp_path):
    folder = tmp_path / "vit"
    folder.mkdir()
    save_model(model, None, folder)
    named = CliRunner().invoke(app, ["classify", str(folder), *map(str, pictures), "--json"], catch_exceptions=False)
    answers = [json.loads(line) for line in named.stdout.splitlines()]
    assert [answer["picture"] for answer in answers] == [str(path) for path in pictures]
    assert [answer["label"] for answer in answers] == [answer.label for answer in ImageClassifier(model)(pictures)]
    (tmp_path / "list.txt").write_text("".join(f"{path}\n" for path in pictures))
    listed = ["classify", str(folder), "--input", str(tmp_path / "list.txt"), "--json"]
    assert CliRunner().invoke(app, listed, catch_exceptions=False).stdout == named.stdout
    with pytest.raises(InputError, match=r"none\.png"):
        CliRunner().invoke(app, ["classify", str(folder), str(pictures[0]), "none.png"], catch_exceptions=False)
    with pytest.raises(InputError, match="image paths"):
        CliRunner().invoke(app, ["classify", str(folder), "--document", str(pictures[0])], catch_exceptions=False)


def test_duplicate_label_names_are_numbered(model, pictures):
    same = ViT(model.config.replace(label_names=("crane", "dog", "crane"))).eval()
    same.load_state_dict(model.state_dict())
    found, expected = (ImageClassifier(classified_by)(pictures[0]).probabilities for classified_by in (same, model))
    names = dict(zip(("crane", "dog", "crane (2)"), NAMES, strict=True))
    assert {names[name]: value for name, value in found.items()} == expected


@pytest.mark.parametrize(
    ("config", "by_hand"),
    [
        ({"image_mean": [0.2], "image_std": [0.4]}, lambda pixels: (pixels / 255 - 0.2) / 0.4),
        ({"do_normalize": False}, lambda pixels: pixels / 255),
        ({}, lambda pixels: pixels / 127.5 - 1),
    ],
)
def test_pictures_are_normalised_as_the_folder_specifies(model, pictures, tmp_path, config, by_hand):
    folder = tmp_path / "vit"
    folder.mkdir()
    save_model(model, None, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    pixels = torch.from_numpy(np.array(Image.open(pictures[0])))[None, None].float()
    with torch.no_grad():
        expected = model(by_hand(pixels))[0].softmax(dim=-1).max()
    assert max(ImageClassifier(folder)(pictures[0]).probabilities.values()) == pytest.approx(float(expected), abs=1e-6)
    assert math.exp(PictureProbe(folder)(pictures[0]).score) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(
    "config",
    [
        {"image_mean": [0.1, 0.2]},
        {"image_std": 3},
        {"image_std": [0.0]},
        {"rescale_factor": 1.0},
        {"image_mean": ["a"]},
    ],
)
def test_an_invalid_normalisation_is_an_error(model, tmp_path, config):
    save_model(model, None, tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"preprocessor_config\.json"):
        ImageClassifier(tmp_path)


def test_a_vit_without_classes_is_an_error():
    with pytest.raises(InputError, match="no classification head"):
        ImageClassifier(ViT(ViTConfig(channels=1, height=8, width=8, patch=4, dim=8, heads=2, layers=1, ffn_dim=32)))
