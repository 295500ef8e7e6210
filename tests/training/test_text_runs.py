"""Recurrent classifiers and taggers: they learn toy data and can be loaded."""

from pathlib import Path

import pytest
import torch

import qkv
from qkv.datasets.dataset import LabeledTextDataset, TaggedDataset
from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.tagged import Tagged
from qkv.registry import lookup
from qkv.training import job
from qkv.training.recipe import read_recipe

FILMS = ("film", "cat", "dog", "plot")
REVIEWS = [
    Pair(f"I saw a {film}.\nIt was {'very ' * often}{word}. The end!", label)
    for film in FILMS
    for often in (0, 1)
    for word, label in (("good", "positive"), ("bad", "negative"), ("fine", "positive"), ("dull", "negative"))
]
SENTENCES = [
    Tagged(("the", first, "saw", "a", second), ("DET", "NOUN", "VERB", "DET", "NOUN"))
    for first in FILMS
    for second in FILMS
]
SMALL = ["model.embedding_dim=16", "model.hidden_dim=16", "model.dropout=0.0", "train.lr=0.02", "train.warmup=0"]
OFTEN = ["train.epochs=10", "train.validate_every=20", "train.ema=0"]


@pytest.fixture(autouse=True)
def _synthetic_data(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = LabeledTextDataset({"train": REVIEWS, "valid": REVIEWS, "test": REVIEWS})
    tags = TaggedDataset({"train": SENTENCES, "valid": SENTENCES})
    for name, data in (("sentence_polarity", texts), ("imdb", texts), ("wnut17", tags)):
        monkeypatch.setattr(lookup("dataset", name), "read", lambda self, data=data: data)


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("polarity-lstm-attention", ["train.batch_size=96"]),
        ("imdb-han", ["train.batch_size=256", "model.max_words=8"]),  # padded words of sentences
    ],
)
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(  # in CUDA graphs, with padded batches
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def test_a_recipe_learns_sentiment_and_loads_as_a_classifier(recipe, changes, device, tmp_path: Path):
    small = read_recipe(recipe, [*SMALL, *OFTEN, *changes, "model.word_dropout=0"])
    done = job.begin(small, tmp_path / "run", device)
    assert done.state.best.value == 1.0
    classifier = qkv.Classifier(tmp_path / "run", device="cpu")
    predictions = classifier(["I saw a cat. It was very dull. The end!", "It was good.\nThe end!"])
    assert [prediction.label for prediction in predictions] == ["negative", "positive"]


def test_a_recipe_learns_to_tag_and_loads_as_a_tagger(tmp_path: Path):
    settings = [
        "model.layers=1",
        "data.tokenizer={ name = 'wordpiece', vocab_size = 60 }",
        "train.best_by=accuracy",
        "train.batch_size=32",
    ]
    changes = [*SMALL, *OFTEN, *settings]
    done = job.begin(read_recipe("wnut-lstm", changes), tmp_path / "run", "cpu")
    assert done.state.best.value == 1.0
    assert qkv.Tagger(tmp_path / "run", device="cpu")("the dog saw a plot").tags == SENTENCES[0].tags
