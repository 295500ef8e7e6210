"""ELMo: pretrain the language models, then fine-tune a tagger and a classifier, frozen or not."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from qkv.datasets.dataset import LabeledTextDataset, TaggedDataset
from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.hub import load
from qkv.pipelines.classifier import Classifier
from qkv.pipelines.tagger import Tagger
from qkv.registry import lookup
from qkv.training import job
from qkv.training.recipe import Recipe, read_recipe

from .stopping import assert_bit_equal, stop_after

SIZES = [
    "model.filters=[[1, 8], [2, 8]]", "model.max_characters=8", "model.dim=12", "model.hidden_dim=16",
    "train.batch_size=64", "train.warmup=0", "train.lr=0.02", "train.save_every=3",
    "train.validate_every=8",
]  # fmt: skip
TAGGED = [
    Tagged(("The", "cat", "sat", "."), ("DET", "NOUN", "VERB", "PUNCT")),
    Tagged(("Dogs", "ran"), ("NOUN", "VERB")),
    Tagged(("A", "dog"), ("DET", "NOUN")),
    Tagged(("Sit", "!"), ("VERB", "PUNCT")),
] * 2
LABEL_HEADS = [
    Pair("The dog ran.", "good"), Pair("A cat sat. The cat sat.", "bad"), Pair("Dogs ran! A cat ran.", "good"),
    Pair("The cat ran", "good"), Pair("Sit!", "bad"), Pair("The dog sat.", "bad"), Pair("Ran.", "good"),
    Pair("Cats sat on dogs.", "bad"),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _synthetic_data() -> Iterator[None]:
    rng = random.Random(0)
    texts = [f"The {rng.choice(['cat', 'dog'])} {rng.choice(['sat', 'ran'])}. A dog sat." for _ in range(24)]
    datasets = {
        "imdb": LabeledTextDataset(
            {"train": [Pair(text, "x") for text in texts[:20]], "valid": [Pair(text, "x") for text in texts[20:]]}
        ),
        "sentence_polarity": LabeledTextDataset(dict.fromkeys(("train", "valid", "test"), LABEL_HEADS)),
        "wnut17": TaggedDataset(dict.fromkeys(("train", "valid", "test"), TAGGED)),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, loaded in datasets.items():
            patch.setattr(lookup("dataset", name), "read", lambda self, loaded=loaded: loaded)
        yield


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "elmo"
    job.begin(read_recipe("imdb-elmo", [*SIZES, "task.length=6", "train.epochs=10", "train.lr=0.05"]), folder, "cpu")
    return folder


def recipe(folder: Path | None, task: str, *changes: str) -> Recipe:
    name = {"tag": "wnut17", "classify": "sentence_polarity"}[task]
    init = [] if folder is None else [f'init="{folder}"']
    settings = [
        f"task={task}", f"data.name={name}", "data.tokenizer=char", "train.epochs=12", "model.task_dropout=0.0",
        "train.best_by=accuracy", "train.weight_decay=0.1", "train.lr=0.05",
    ]  # fmt: skip
    return read_recipe("imdb-elmo", [*SIZES, *init, *settings, *changes])


def test_both_language_models_learn_and_save_their_output_vocabulary(pretrained):
    model = load(pretrained)
    assert model.config.head == "language_model"
    assert model.config.max_characters == 8
    assert len(model.tokenizer) == model.config.vocab_size == 4 + 7
    lines = map(json.loads, (pretrained / "log.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line["kind"] == "valid"]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("frozen", [False, True])
def test_resuming_is_bit_exact(frozen, pretrained, tmp_path, monkeypatch):
    short = read_recipe("imdb-elmo", [*SIZES, "task.length=6", "train.epochs=2"])
    if frozen:
        settings = ["model.task_dropout=0.2", "model.task_hidden_dim=4", "train.ema=0.9"]
        short = recipe(pretrained, "tag", "model.frozen=true", "train.epochs=4", *settings)
    job.begin(short, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert not job.begin(short, tmp_path / "parts", "cpu").state.finished
    assert job.resume(tmp_path / "parts", "cpu").state.finished
    assert_bit_equal(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("task", ["tag", "classify"])
def test_a_frozen_model_is_unchanged_while_its_head_overfits_eight_examples(task, pretrained, tmp_path):
    head = ["model.task_hidden_dim=8", "model.pooling=attention"]
    frozen = recipe(pretrained, task, "model.frozen=true", *head, "train.epochs=40", "train.lr=0.1")
    done = job.begin(frozen, tmp_path / "run", "cpu")
    assert done.state.best is not None
    assert done.state.best.value == 1.0
    after = load(tmp_path / "run")
    weights = dict(load(pretrained).named_parameters())
    for name, weight in after.named_parameters():
        assert name.startswith("task.") or torch.equal(weight, weights[name]), name
    assert after.task.mix.weights.abs().max() > 0
    if task == "tag":
        predictions = Tagger(tmp_path / "run", device="cpu")([sentence.words for sentence in TAGGED])
        assert [prediction.tags for prediction in predictions] == [sentence.tags for sentence in TAGGED]
    else:
        classifier = Classifier(tmp_path / "run", device="cpu")
        predictions = classifier([pair.source for pair in LABEL_HEADS])
        assert [prediction.label for prediction in predictions] == [pair.target for pair in LABEL_HEADS]
        assert classifier.too_long(["word " * 513, "word " * 512]) == [1]


def test_fine_tuning_starts_from_the_pretrained_weights_and_changes_them(pretrained, tmp_path):
    no_update = ["train.lr=1e-12", "train.weight_decay=0.0", "train.epochs=1"]
    job.begin(recipe(pretrained, "classify", *no_update), tmp_path / "unchanged", "cpu")
    job.begin(recipe(pretrained, "classify", "train.epochs=2"), tmp_path / "tuned", "cpu")
    before = dict(load(pretrained).named_parameters())
    for folder, tolerance in (("unchanged", 1e-9), ("tuned", None)):
        for name, weight in load(tmp_path / folder).named_parameters():
            if name in before and tolerance is not None:
                torch.testing.assert_close(weight, before[name], rtol=0, atol=tolerance)
            elif name in before:
                assert not torch.equal(weight, before[name]), name


def test_training_from_scratch_on_characters_resumes_bit_exactly(tmp_path, monkeypatch):
    scratch = recipe(None, "tag", "train.epochs=3", "model.mix=top", "model.task_dropout=0.2")
    job.begin(scratch, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        job.begin(scratch, tmp_path / "parts", "cpu")
    job.resume(tmp_path / "parts", "cpu")
    assert_bit_equal(tmp_path / "whole", tmp_path / "parts")
    assert load(tmp_path / "parts").task.mix.weights.shape == (1,)


def test_bidirectional_language_models_need_a_word_vocabulary():
    with pytest.raises(InputError, match=r"data\.tokenizer 'bpe'"):
        read_recipe("imdb-elmo", ["data.tokenizer=bpe"])
