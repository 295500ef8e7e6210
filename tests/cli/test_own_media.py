"""Train on your own images, captions and recordings with one command, and use the trained models."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.pipelines.recordings import write_wav

from .command import Ended

Command = Callable[..., Ended]
VIT = ("model.stem=[]", "model.dim=16", "model.heads=2", "model.layers=1", "model.ffn_dim=16")


def settings(*assignments: str) -> list[str]:
    return [word for assignment in assignments for word in ("--set", assignment)]


def draw(path: Path, bright: int, seed: int, size: tuple[int, int] = (40, 30)) -> Path:
    """A noisy picture with a bright left (0) or right half (1)."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 80, (size[1], size[0], 3), dtype=np.uint8)
    half = size[0] // 2
    pixels[:, bright * half : bright * half + half] += 150
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(24):
        bright = number % 2
        draw(
            tmp_path / "photos" / ("left", "right")[bright] / f"{number}.{'jpg' if number % 3 else 'PNG'}",
            bright,
            number,
        )
    return tmp_path / "photos"


def test_a_folder_of_images_trains_a_classifier(qkv: Command, photos: Path, tmp_path: Path) -> None:
    small = settings(*VIT, "task.flip=false", "train.epochs=40", "train.warmup=5", "train.lr=5e-3", "data.side=16")
    trained = qkv("train", "images-vit", "--data", photos, "--output", tmp_path / "run", *small, "--device", "cpu")
    assert trained.code == 0, trained.err
    assert "2 of 24 images are held out" in trained.err
    pictures = [draw(tmp_path / f"{bright}.png", bright, 100 + bright, (31, 47)) for bright in (0, 1)]
    answers = [json.loads(line) for line in qkv("classify", tmp_path / "run", *pictures, "--json").out.splitlines()]
    assert [answer["label"] for answer in answers] == ["left", "right"]
    report = json.loads(qkv("evaluate", tmp_path / "run", "--data", photos, "--json").out)
    assert (report["size"], report["accuracy"]) == (24, 1.0)
    report = json.loads(qkv("evaluate", tmp_path / "run", "--data", photos, "--limit", 5, "--json").out)
    assert (report["size"], report["accuracy"]) == (5, 1.0)
    assert "is a folder" in qkv("classify", tmp_path / "run", photos).error
    draw(photos / "above" / "1.png", 0, 1)
    other = photos.rename(tmp_path / "other")
    assert "above" in qkv("evaluate", tmp_path / "run", "--data", other).error


def test_a_released_vit_is_fine_tuned_at_its_own_size(qkv: Command, photos: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    released = transformers.ViTConfig(**sizes, image_size=24, patch_size=8, num_labels=5)
    transformers.ViTForImageClassification(released).save_pretrained(tmp_path / "released")
    started = settings(f"init={tmp_path / 'released'}", "train.epochs=1")
    trained = qkv("train", "images-vit-finetune", "--data", photos, "--output", tmp_path / "run", *started)
    assert trained.code == 0, trained.err
    assert "randomly initialized: head.weight, head.bias" in trained.err
    config = json.loads((max((tmp_path / "run").glob("step-*")) / "config.json").read_text())
    assert (config["height"], config["width"], config["label_names"]) == (24, 24, ["left", "right"])
    assert json.loads(qkv("evaluate", tmp_path / "run", "--json").out)["size"] == 2
    other = qkv("train", "images-vit-finetune", "--data", photos, "--output", tmp_path / "b", *started,
                "--set", "data.side=32", "--dry-run", "--json")  # fmt: skip
    assert json.loads(other.out)["recipe"]["model"]["height"] == 32


def test_captions_in_a_table_train_a_captioner(qkv: Command, photos: Path, tmp_path: Path) -> None:
    files = sorted(path.relative_to(tmp_path) for path in photos.rglob("*.*"))
    rows = "".join(
        f"{file},a {'bright' if seed else 'light'} half {file.parent.name}\n" for seed, file in enumerate(files)
    )
    (tmp_path / "captions.csv").write_text(f"image,caption\n{rows}")
    small = settings("model.encoder.filters=[4,8]", "model.feature_dim=8", "model.hidden_dim=16", "data.side=16",
                     "model.embedding_dim=8", "train.epochs=1", "task.shift=0")  # fmt: skip
    run = tmp_path / "run"
    trained = qkv("train", "captions-attend", "--data", tmp_path / "captions.csv", "--output", run, *small)
    assert trained.code == 0, trained.err
    assert qkv("caption", run, tmp_path / files[0]).code == 0
    report = json.loads(qkv("evaluate", run, "--data", tmp_path / "captions.csv", "--json").out)
    assert report["size"] == 24


def test_a_folder_of_recordings_trains_a_recognizer(qkv: Command, tmp_path: Path) -> None:
    rng = random.Random(0)
    (tmp_path / "speech").mkdir()
    for number in range(8):
        write_wav(tmp_path / "speech" / f"{number}.wav", 0.1 + 0.02 * number, rate=8000, seed=number)
        (tmp_path / "speech" / f"{number}.txt").write_text(rng.choice(["one", "two"]))
    small = settings("model.hidden_dim=8", "model.embedding_dim=4", "model.encoder.dim=8", "train.epochs=1")
    run = tmp_path / "run"
    trained = qkv("train", "speech-las", "--data", tmp_path / "speech", "--output", run, *small)
    assert trained.code == 0, trained.err
    assert qkv("transcribe", run, tmp_path / "speech" / "1.wav", "--max-new-tokens", 3).code == 0
    assert json.loads(qkv("evaluate", run, "--data", tmp_path / "speech", "--json").out)["size"] == 8


@pytest.mark.parametrize(
    ("recipe", "name", "lines", "columns"),
    [
        ("polarity-lstm-mean", "a.csv", ["id,feedback,verdict"] + [f"{n},it was {n},{n % 2}" for n in range(20)],
         ("text=feedback", "label=verdict")),
        ("pairs-gru", "a.jsonl", [f'{{"x": "{n}", "q": "a{n}", "r": "b{n}"}}' for n in range(20)],
         ("source=q", "target=r")),
        ("ewt-lstm", "a.jsonl", [f'{{"w": ["a", "b{n}"], "t": ["X", "Y"]}}' for n in range(20)],
         ("tokens=w", "tags=t")),
    ],
)  # fmt: skip
def test_columns_are_named_on_the_command_line(
    qkv: Command, tmp_path: Path, recipe: str, name: str, lines: list[str], columns: tuple[str, str]
) -> None:
    (tmp_path / name).write_text("\n".join(lines))
    named = [word for column in columns for word in ("--column", column)]
    small = settings("model.hidden_dim=8", "model.embedding_dim=8", "train.epochs=1", "train.valid_size=4")
    trained = qkv("train", recipe, "--data", tmp_path / name, *named, "--output", tmp_path / "run", *small)
    assert trained.code == 0, trained.err
    assert qkv("evaluate", tmp_path / "run", "--split", "valid", "--no-record").code == 0
    for again in ((), named):  # by default, the columns of the run
        scored = qkv("evaluate", tmp_path / "run", "--data", tmp_path / name, *again, "--json")
        assert json.loads(scored.out)["size"] == 20
    assert "expected ROLE=NAME" in qkv("train", recipe, "--data", tmp_path / name, "--column", "text").error
    assert "--data" in qkv("train", recipe, "--column", columns[0]).error


@pytest.mark.parametrize("command", [("train", "images-vit", "--data"), ("data", "check"), ("data", "show")])
def test_hostile_folders_are_one_line_errors(
    qkv: Command, photos: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    output = ("--output", tmp_path / "run") if command[0] == "train" else ()
    (tmp_path / "empty").mkdir()
    if command[0] == "train":
        assert "no images found" in qkv(*command, tmp_path / "empty", *output).error
    whole = next(photos.rglob("*.jpg")).read_bytes()
    (photos / "left" / "cut.JPG").write_bytes(whole[: len(whole) // 2])
    (photos / "left" / "text.png").write_text("no picture")
    error = qkv(*command, photos, *output).error
    assert re.search(r"cut\.JPG|text\.png", error)
    assert "2 of 26 images" in error
    assert "how-to/your-own-data#images" in error
    assert not (tmp_path / "run").exists()
