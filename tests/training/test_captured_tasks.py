"""Every task that can be captured in CUDA graphs learns the same in them as without."""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from qkv.data.pair import Pair
from qkv.data.pictures import Pictures
from qkv.data.registry import DATA_SETS, Loaded
from qkv.data.tagged import Tagged
from qkv.training import job
from qkv.training.recipe import read_recipe

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BERT = ["model.dim=16", "model.heads=2", "model.layers=1", "model.dropout=0.0", "model.attention_dropout=0.0"]
ELMO = [
    "model.filters=[[1, 8], [2, 8]]", "model.max_characters=8", "model.dim=12", "model.hidden=16", "model.dropout=0.0",
]  # fmt: skip
ON_ELMO = [*ELMO, "model.reader_hidden=8", "model.task_dropout=0.0"]
PIECES = "data.vocabulary=wordpiece:60"
RECIPES = {
    "imdb-bert": [*BERT, PIECES, "train.length=16", "model.max_length=16"],
    "imdb-gpt": [*BERT, "data.vocabulary=word", "train.length=16", "model.max_length=16"],
    "imdb-elmo": [*ELMO, "train.length=8"],
    "polarity-bert": [*BERT, PIECES, "model.max_length=16"],
    "polarity-elmo": ON_ELMO,
    "wnut-bert": [*BERT, PIECES, "model.max_length=16"],
    "wnut-elmo": ON_ELMO,
    "polarity-lstm-attention": ["model.embedding=8", "model.hidden=4", "model.dropout=0.0", "model.word_dropout=0.0"],
    "imdb-han": [
        "model.embedding=8", "model.hidden=4", "model.dropout=0.0", "model.word_dropout=0.0", "model.max_length=4",
        "model.max_words=8", "data.vocabulary=word",
    ],
    "imdb-linformer": [*BERT, PIECES, "model.max_length=16", "model.rank=4"],
    "copy-ntm": ["model.hidden=8", "model.locations=8", "model.width=4", "data.size=200"],
    "shakespeare-gpt": [*BERT, "train.length=16", "model.max_length=16"],
    "fashion-vit": [*BERT[:-1], "model.feedforward=16", "model.stem=[4]", "train.cover=2"],
    "multi30k-transformer": [
        "model.dim=16", "model.heads=2", "model.feedforward=16", "model.dropout=0.0", "model.attention_dropout=0.0",
        "model.activation_dropout=0.0", "data.vocabulary=bpe:60",
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _made_data(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)

    def text() -> str:
        words = chance.choices(["the", "cat", "dog", "sat", "ran", "on", "under", "a", "mat"], k=chance.randint(3, 9))
        return " ".join(words).capitalize() + "."

    sentences = [text() for _ in range(120)]
    labelled = [Pair(f"{one} {two}", chance.choice("xy")) for one, two in pairwise(sentences)]
    pairs = [Pair(one, " ".join(reversed(one.split()))) for one in sentences]
    tagged = [Tagged(tuple(one.split()), tuple(word[:1].upper() for word in one.split())) for one in sentences]
    pixels = np.random.default_rng(0).integers(0, 256, (60, 1, 8, 8), dtype=np.uint8)
    pictures = Pictures(pixels, np.arange(60) % 3, ("a", "b", "c"))
    made = {
        "imdb": Loaded({"train": labelled[:100], "valid": labelled[100:]}),
        "sentence_polarity": Loaded({"train": labelled[:100], "valid": labelled[100:]}),
        "wnut17": Loaded({}, tagged={"train": tagged[:100], "valid": tagged[100:]}),
        "multi30k": Loaded({"train": pairs[:100], "valid": pairs[100:]}),
        "tinyshakespeare": Loaded({}, texts={"train": " ".join(sentences), "valid": " ".join(sentences[:20])}),
        "fashion_mnist": Loaded({}, pictures={"train": pictures, "valid": pictures}),
    }
    for name, loaded in made.items():
        monkeypatch.setitem(DATA_SETS, name, replace(DATA_SETS[name], load=lambda _, loaded=loaded: loaded))


def trained(name: str, folder: Path, *changes: str) -> tuple[list[float], Path]:
    """The losses of a short run, and where its last weights are."""
    usual = ["train.epochs=2", "train.batch_tokens=64", "train.precision=float32", "train.ema=0.0", "train.warmup=5"]
    if name == "fashion-vit":
        usual[1] = "train.batch_tokens=16"
    done = job.begin(read_recipe(name, [*RECIPES[name], *usual, *changes]), folder, DEVICE)
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows], done.run.checkpoints[-1] / "model.safetensors"


@pytest.mark.parametrize("name", RECIPES)
def test_captured_steps_are_the_plain_ones(name: str, tmp_path: Path) -> None:
    (captured, one), (plain, other) = (
        trained(name, tmp_path / graphs, f"train.graphs={graphs}") for graphs in ("true", "false")
    )
    assert captured == pytest.approx(plain, rel=2e-3)
    ours, theirs = load_file(one), load_file(other)
    for key, weight in ours.items():
        torch.testing.assert_close(weight, theirs[key], rtol=0.02, atol=5e-3)


def test_frozen_weights_stay_as_they_were_in_captured_steps_too(tmp_path: Path) -> None:
    _, before = trained("imdb-elmo", tmp_path / "below")
    init = f'init="{tmp_path / "below"}"'
    _, after = trained("wnut-elmo", tmp_path / "above", init, "model.frozen=true", "train.weight_decay=0.5")
    old, new = load_file(before), load_file(after)
    kept = [name for name in old if name.startswith(("word_encoder.", "layers."))]
    assert kept
    assert all(torch.equal(old[name], new[name]) for name in kept)
