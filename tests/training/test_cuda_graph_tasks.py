"""Every task that supports CUDA graphs trains the same with and without them."""

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from qkv.datasets.dataset import ImageDataset, LabeledTextDataset, PairDataset, TaggedDataset, TextDataset
from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.tagged import Tagged
from qkv.datasets.formats.images import LabeledImages
from qkv.registry import lookup
from qkv.training import job
from qkv.training.recipe import read_recipe

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BERT = ["model.dim=16", "model.heads=2", "model.layers=1", "model.dropout=0.0", "model.attention_dropout=0.0"]
ELMO = [
    "model.filters=[[1, 8], [2, 8]]", "model.max_characters=8", "model.dim=12", "model.hidden_dim=16",
    "model.dropout=0.0",
]  # fmt: skip
ON_ELMO = [*ELMO, "model.task_hidden_dim=8", "model.task_dropout=0.0"]
PIECES = "data.tokenizer={ name = 'wordpiece', vocab_size = 60 }"
RECIPES = {
    "imdb-bert": [*BERT, PIECES, "task.length=16", "model.max_length=16"],
    "imdb-gpt": [*BERT, "data.tokenizer=word", "task.length=16", "model.max_length=16"],
    "imdb-elmo": [*ELMO, "task.length=8"],
    "polarity-bert": [*BERT, PIECES, "model.max_length=16"],
    "polarity-elmo": ON_ELMO,
    "wnut-bert": [*BERT, PIECES, "model.max_length=16"],
    "wnut-elmo": ON_ELMO,
    "polarity-lstm-attention": [
        "model.embedding_dim=8", "model.hidden_dim=4", "model.dropout=0.0", "model.word_dropout=0.0",
    ],
    "imdb-han": [
        "model.embedding_dim=8", "model.hidden_dim=4", "model.dropout=0.0", "model.word_dropout=0.0",
        "model.max_length=4", "model.max_words=8", "data.tokenizer=word",
    ],
    "imdb-linformer": [*BERT, PIECES, "model.max_length=16", "model.rank=4"],
    "copy-ntm": ["model.hidden_dim=8", "model.locations=8", "model.location_dim=4", "data.size=200"],
    "shakespeare-gpt": [*BERT, "task.length=16", "model.max_length=16"],
    "fashion-vit": [*BERT[:-1], "model.ffn_dim=16", "model.stem=[4]", "task.cutout=2"],
    "multi30k-transformer": [
        "model.dim=16", "model.heads=2", "model.ffn_dim=16", "model.dropout=0.0", "model.attention_dropout=0.0",
        "model.activation_dropout=0.0", "data.tokenizer={ name = 'bpe', vocab_size = 60 }",
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _synthetic_data(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)

    def random_sentence() -> str:
        words = rng.choices(["the", "cat", "dog", "sat", "ran", "on", "under", "a", "mat"], k=rng.randint(3, 9))
        return " ".join(words).capitalize() + "."

    sentences = [random_sentence() for _ in range(120)]
    labelled = [Pair(f"{first} {second}", rng.choice("xy")) for first, second in pairwise(sentences)]
    pairs = [Pair(text, " ".join(reversed(text.split()))) for text in sentences]
    tagged = [Tagged(tuple(text.split()), tuple(word[:1].upper() for word in text.split())) for text in sentences]
    pixels = np.random.default_rng(0).integers(0, 256, (60, 1, 8, 8), dtype=np.uint8)
    pictures = LabeledImages(pixels, np.arange(60) % 3, ("a", "b", "c"))
    datasets = {
        "imdb": LabeledTextDataset({"train": labelled[:100], "valid": labelled[100:]}),
        "sentence_polarity": LabeledTextDataset({"train": labelled[:100], "valid": labelled[100:]}),
        "wnut17": TaggedDataset({"train": tagged[:100], "valid": tagged[100:]}),
        "multi30k": PairDataset({"train": pairs[:100], "valid": pairs[100:]}),
        "tinyshakespeare": TextDataset({"train": " ".join(sentences), "valid": " ".join(sentences[:20])}),
        "fashion_mnist": ImageDataset({"train": pictures, "valid": pictures}),
    }
    for name, loaded in datasets.items():
        monkeypatch.setattr(lookup("dataset", name), "read", lambda self, loaded=loaded: loaded)


def train(name: str, folder: Path, *changes: str) -> tuple[list[float], Path]:
    """Return the losses of a short run and the path of its final weights."""
    defaults = ["train.epochs=2", "train.batch_size=64", "train.precision=float32", "train.ema=0.0", "train.warmup=5"]
    if name == "fashion-vit":
        defaults[1] = "train.batch_size=16"
    done = job.begin(read_recipe(name, [*RECIPES[name], *defaults, *changes]), folder, DEVICE)
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row], done.run.checkpoints[-1] / "model.safetensors"


@pytest.mark.parametrize("name", RECIPES)
def test_cuda_graph_steps_match_eager_steps(name: str, tmp_path: Path) -> None:
    (graph_losses, graph_weights), (eager_losses, eager_weights) = (
        train(name, tmp_path / graphs, f"train.graphs={graphs}") for graphs in ("true", "false")
    )
    assert graph_losses == pytest.approx(eager_losses, rel=2e-3)
    expected = load_file(eager_weights)
    for key, weight in load_file(graph_weights).items():
        torch.testing.assert_close(weight, expected[key], rtol=0.02, atol=5e-3)


def test_frozen_weights_are_unchanged_by_cuda_graph_steps(tmp_path: Path) -> None:
    _, before = train("imdb-elmo", tmp_path / "pretrained")
    init = f'init="{tmp_path / "pretrained"}"'
    _, after = train("wnut-elmo", tmp_path / "finetuned", init, "model.frozen=true", "train.weight_decay=0.5")
    old, new = load_file(before), load_file(after)
    frozen = [name for name in old if name.startswith(("word_encoder.", "layers."))]
    assert frozen
    assert all(torch.equal(old[name], new[name]) for name in frozen)
