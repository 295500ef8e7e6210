"""`qkv caption`: text and JSON output, the attention page, and errors."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from qkv.hub.model_folder import save_model
from qkv.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from qkv.tokenizers import WordTokenizer

from .command import Ended

Command = Callable[..., Ended]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tokenizer = WordTokenizer.train(["a red circle above a small blue square"])
    small = {
        "height": 8,
        "width": 8,
        "encoder": {"name": "cnn", "filters": (4, 8)},
        "feature_dim": 6,
        "embedding_dim": 5,
        "hidden_dim": 7,
        "max_length": 6,
    }
    (tmp_path / "model").mkdir()
    save_model(ShowAttendTell(ShowAttendTellConfig(vocab_size=len(tokenizer), **small)), tokenizer, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    for name in ("red", "blue"):
        Image.new("RGB", (20, 10), name).save(tmp_path / f"{name}.png")
    return [tmp_path / "red.png", tmp_path / "blue.png"]


def test_each_image_gives_a_line_or_a_json_object(qkv: Command, model: Path, pictures: list[Path]):
    lines = qkv("caption", model, *pictures, "--device", "cpu", "--num-beams", 2)
    assert (lines.code, lines.err) == (0, "")
    found = [json.loads(line) for line in qkv("caption", model, *pictures, "--json", "--num-beams", 2).out.splitlines()]
    assert [one["text"] for one in found] == lines.out.splitlines()
    assert [(one["input"], one["picture"], one["grid"]) for one in found] == [
        (1, "red.png", [2, 2]),
        (2, "blue.png", [2, 2]),
    ]
    for one in found:
        assert len(one["attention"]) == len(one["tokens"])
        assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in one["attention"])


def test_paths_in_a_table_are_relative_to_its_folder(qkv: Command, model: Path, pictures: list[Path], tmp_path: Path):
    (tmp_path / "images.jsonl").write_text('{"file_name": "red.png"}\n{"file_name": "blue.png"}\n')
    ended = qkv("caption", model, "--input", tmp_path / "images.jsonl")
    assert ended.out == qkv("caption", model, *pictures).out
    assert "image is 'file_name'" in ended.err
    (tmp_path / "images.csv").write_text(f"id,photo,scan\n1,,{pictures[0]}\n")
    assert "error: input 1 is empty" in qkv("caption", model, "--input", tmp_path / "images.csv").err
    absolute = qkv("caption", model, "--input", tmp_path / "images.csv", "--column", "image=scan")
    assert absolute.out == qkv("caption", model, pictures[0]).out
    assert "mutually exclusive" in qkv("caption", model, pictures[0], "--input", tmp_path / "images.csv").error


def test_the_attention_page_is_html(qkv: Command, model: Path, pictures: list[Path], tmp_path: Path):
    ended = qkv("caption", model, *pictures, "--page", tmp_path / "page.html")
    assert ended.err == f"attention: {tmp_path / 'page.html'}\n"
    (data,) = re.findall(r'id="data">(.*?)</script>', (tmp_path / "page.html").read_text())
    payload = json.loads(data)
    assert [example["source"] for example in payload["examples"]] == [path.name for path in pictures]
    assert payload["model"] == "/".join(model.parts[-2:])
    assert "caption" in payload["command"]


def test_invalid_images_are_one_line_errors(qkv: Command, model: Path, pictures: list[Path], tmp_path: Path):
    (tmp_path / "none.png").write_text("no picture")
    assert "none.png: " in qkv("caption", model, tmp_path / "none.png").error
    assert "there.png: no such file" in qkv("caption", model, pictures[0], tmp_path / "there.png").error
    assert "standard input" in qkv("caption", model).error
    assert "qkv caption" in qkv("translate", model, "x").error
