"""`qkv view` for text encoders, language models and vision Transformers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.models.vit import ViT, ViTConfig
from qkv.tokenizers import CharTokenizer
from tests.tasks.tiny_bert import saved, tiny_bert, tiny_tokenizer

TEXT = "the cat sat"
VIT = ViTConfig(
    classes=2, label_names=("cat", "dog"), height=8, width=12, channels=3, patch=4, dim=16, layers=2, heads=2, ffn_dim=8
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("readers")
    torch.manual_seed(0)
    tokenizer = CharTokenizer.train([TEXT])
    size = len(tokenizer)
    models = {
        "bert": (tiny_bert("tagger", max_length=10), tiny_tokenizer(path)),
        "gpt2": (GPT2(GPT2Config(vocab_size=size, dim=16, heads=2, layers=2, max_length=32)), tokenizer),
        "rnn": (RNNLM(RNNLMConfig(vocab_size=size, embedding_dim=8, hidden_dim=8)), tokenizer),
        "vit": (ViT(VIT), None),
    }
    Image.fromarray(np.full((20, 30, 3), 200, dtype=np.uint8)).save(path / "a.png")
    return {"picture": path / "a.png"} | {
        name: saved(model, tokenizer, path / name) for name, (model, tokenizer) in models.items()
    }


def stored(path: Path) -> list[dict]:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    return json.loads(data)["examples"]


@pytest.mark.parametrize(
    ("model", "layer", "tokens"),
    [("bert", "encoder.1", ["[CLS]", "the", "cat", "sat", "[SEP]"]), ("gpt2", "blocks.1", [*TEXT])],
)
def test_a_page_shows_the_tokens_and_every_layer(qkv, folders, tmp_path, model, layer, tokens):
    page, png = tmp_path / "a.html", tmp_path / "a.png"
    done = qkv("view", folders[model], TEXT, "a cat", "--page", page, "--png", png, "--layer", layer, "--head", 1)
    assert done.code == 0
    assert done.out.startswith(f"{layer} · head 1 of 2\n")
    assert done.out.splitlines()[-2:] == [str(page), str(png)]
    first, second = stored(page)
    assert (first["source"], first["texts"]) == (TEXT, [tokens])
    tags = [prediction["candidates"][0][0] for prediction in first["predictions"]]
    assert first["text"] == " ".join(tags)
    assert done.err == (f"{TEXT}  ->  {first['text']}\n" if tags else f"{TEXT}\n")
    assert len(tags) == (3 if model == "bert" else 0)  # of a tagger, each word
    assert [attention["layer"] for attention in first["maps"]] == [layer.replace("1", "0"), layer]
    assert second["source"] == "a cat"
    assert (first["score"] is None) == (model == "bert")


def test_a_text_that_is_too_long_is_truncated(qkv, folders, tmp_path):
    done = qkv("view", folders["bert"], f"{TEXT} " * 9, "--page", tmp_path / "a.html", "--json")
    assert json.loads(done.out) == {"page": str(tmp_path / "a.html")}
    assert "is truncated to the model's maximum of 8 tokens" in done.err
    assert len(stored(tmp_path / "a.html")[0]["texts"][0]) == 10


def test_a_language_model_generates_before_the_view(qkv, folders, tmp_path):
    done = qkv("view", folders["gpt2"], TEXT[:4], "--max-new-tokens", 3, "--page", tmp_path / "a.html")
    assert done.code == 0
    (example,) = stored(tmp_path / "a.html")
    assert example["generation"]["prompt"] == len(example["generation"]["steps"]) - 3
    assert all(step["rank"] == 1 for step in example["generation"]["steps"][example["generation"]["prompt"] - 1 : -1])
    refused = qkv("view", folders["bert"], TEXT, "--max-new-tokens", 3)
    assert refused.code == 2
    assert "--max-new-tokens" in refused.err


def test_a_vision_transformer_is_drawn_over_the_image(qkv, folders, tmp_path):
    page, png = tmp_path / "a.html", tmp_path / "b.png"
    done = qkv("view", folders["vit"], folders["picture"], "--page", page, "--png", png)
    assert done.code == 0
    assert done.err.startswith("a.png  ->  ")
    assert done.out.startswith("encoder.0 · average of 2 heads\n")
    (answer,) = stored(page)
    assert answer["picture"]["grid"] == [2, 3]
    assert len(answer["texts"][answer["maps"][0]["columns"]]) == 1 + 2 * 3
    assert Image.open(png).size == (2 * 448 + 16, 299)


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        ("bert", [], "pass a text"),
        ("vit", [], "pass an image"),
        ("vit", ["none.png"], "none.png: no such file"),
        ("vit", ["PICTURE", "--layer", "x"], "layer 'x'"),
        ("vit", ["PICTURE", "--head", "2"], "head 2"),
        ("bert", ["a", ""], "input 2 "),
        ("bert", ["a", "--layer", "x"], "layer 'x'"),
        ("gpt2", ["a", "--head", "2"], "head 2"),
        ("gpt2", ["a", "--num-beams", "2"], "--num-beams"),
        ("rnn", ["a"], "RNNLM"),
    ],
)
def test_invalid_arguments_are_errors_and_nothing_is_written(qkv, folders, tmp_path, model, arguments, words):
    inputs = [folders["picture"] if word == "PICTURE" else word for word in arguments]
    assert words in qkv("view", folders[model], *inputs, "--page", tmp_path / "a.html").error
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("model", "data"), [("shapes", "shapes"), ("digits", "fsdd")])
def test_without_an_image_or_recording_the_error_names_the_command_that_writes_some(qkv, model, data):
    assert f"qkv data show {data} --output FOLDER" in qkv("view", model).error


def test_a_pretrained_model_without_its_data_needs_a_text(qkv, tmp_path, monkeypatch):
    for name in ("QKV_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    error = qkv("view", "tatoeba-en-de").error
    assert error.startswith("tatoeba-en-de: pass a text")
    assert "deu-eng.zip" in error
