"""ELMo from its own language models to a tagger and a classifier: what is learned, taken over, and left as it was."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qkv.data.pair import Pair
from qkv.data.registry import DATASETS, LoadedData
from qkv.data.tagged import Tagged
from qkv.errors import InputError
from qkv.interop import load
from qkv.tasks.classifier import Classifier
from qkv.tasks.tagger import Tagger
from qkv.training import job
from qkv.training.recipe import Recipe, read_recipe
from qkv.training.run import Run

SIZES = [
    "model.filters=[[1, 8], [2, 8]]", "model.max_characters=8", "model.dim=12", "model.hidden=16",
    "train.length=6", "train.batch_tokens=64", "train.warmup=0", "train.lr=0.02", "train.save_every=3",
    "train.validate_every=8",
]  # fmt: skip
TAGGED = [
    Tagged(("The", "cat", "sat", "."), ("DET", "NOUN", "VERB", "PUNCT")),
    Tagged(("Dogs", "ran"), ("NOUN", "VERB")),
    Tagged(("A", "dog"), ("DET", "NOUN")),
    Tagged(("Sit", "!"), ("VERB", "PUNCT")),
] * 2
LABELLED = [
    Pair("The dog ran.", "good"), Pair("A cat sat. The cat sat.", "bad"), Pair("Dogs ran! A cat ran.", "good"),
    Pair("The cat ran", "good"), Pair("Sit!", "bad"), Pair("The dog sat.", "bad"), Pair("Ran.", "good"),
    Pair("Cats sat on dogs.", "bad"),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _made_data() -> Iterator[None]:
    chance = random.Random(0)
    texts = [f"The {chance.choice(['cat', 'dog'])} {chance.choice(['sat', 'ran'])}. A dog sat." for _ in range(24)]
    made = {
        "imdb": LoadedData(
            {"train": [Pair(text, "x") for text in texts[:20]], "valid": [Pair(text, "x") for text in texts[20:]]}
        ),
        "sentence_polarity": LoadedData(dict.fromkeys(("train", "valid", "test"), LABELLED)),
        "wnut17": LoadedData({}, tagged=dict.fromkeys(("train", "valid", "test"), TAGGED)),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, loaded in made.items():
            patch.setitem(DATASETS, name, replace(DATASETS[name], load=lambda _, loaded=loaded: loaded))
        yield


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "elmo"
    job.begin(read_recipe("imdb-elmo", [*SIZES, "train.epochs=10", "train.lr=0.05"]), folder, "cpu")
    return folder


def recipe(folder: Path | None, task: str, *changes: str) -> Recipe:
    name = {"tag": "wnut17", "classify": "sentence_polarity"}[task]
    begins = [] if folder is None else [f'init="{folder}"']
    settings = [
        f"task={task}", f"data.name={name}", "data.vocabulary=char", "train.epochs=12", "model.task_dropout=0.0",
        "train.best_by=accuracy", "train.weight_decay=0.1", "train.lr=0.05",
    ]  # fmt: skip
    return read_recipe("imdb-elmo", [*SIZES, *begins, *settings, *changes])


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    newest = Run.open(folder).checkpoints[-1]
    return load_file(newest / "model.safetensors") | load_file(newest / "training.safetensors")


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Make the loop find Ctrl-C pressed after so many steps."""
    asked = iter([False] * (steps - 1) + [True] * 1000)
    monkeypatch.setattr("qkv.training.interrupt.Interrupt.__bool__", lambda self: next(asked))


def test_both_language_models_learn_and_keep_the_words_that_they_predict(pretrained):
    model = load(pretrained)
    assert model.config.head == "language_model"
    assert model.tokenizer.longest == 8
    assert len(model.tokenizer.predicted) == model.config.vocabulary_size == 4 + 7
    lines = map(json.loads, (pretrained / "log.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line["kind"] == "valid"]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("frozen", [False, True])
def test_a_run_that_was_interrupted_ends_bit_for_bit_like_one_that_was_not(frozen, pretrained, tmp_path, monkeypatch):
    short = read_recipe("imdb-elmo", [*SIZES, "train.epochs=2"])
    if frozen:
        dropped = ["model.task_dropout=0.2", "model.reader_hidden=4", "train.ema=0.9"]
        short = recipe(pretrained, "tag", "model.frozen=true", "train.epochs=4", *dropped)
    job.begin(short, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert not job.begin(short, tmp_path / "parts", "cpu").place.finished
    assert job.resume(tmp_path / "parts", "cpu").place.finished
    one, other = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("task", ["tag", "classify"])
def test_a_frozen_model_stays_bit_for_bit_and_its_task_learns_eight_examples(task, pretrained, tmp_path):
    own = ["model.reader_hidden=8", "model.pooling=attention"]
    wanted = recipe(pretrained, task, "model.frozen=true", *own, "train.epochs=40", "train.lr=0.1")
    done = job.begin(wanted, tmp_path / "run", "cpu")
    assert done.place.best is not None
    assert done.place.best.value == 1.0
    before, after = load(pretrained), load(tmp_path / "run")
    taken = dict(before.named_parameters())
    for name, weight in after.named_parameters():
        assert name.startswith("task.") or torch.equal(weight, taken[name]), name
    assert after.task.mix.weights.abs().max() > 0
    assert after.tokenizer.predicted is None
    if task == "tag":
        found = Tagger(tmp_path / "run", device="cpu").tag([sentence.words for sentence in TAGGED])
        assert [one.tags for one in found] == [sentence.tags for sentence in TAGGED]
    else:
        classifier = Classifier(tmp_path / "run", device="cpu")
        assert [one.label for one in classifier.classify([pair.source for pair in LABELLED])] == [
            pair.target for pair in LABELLED
        ]
        assert classifier.too_long(["word " * 513, "word " * 512]) == [1]


def test_a_model_that_is_tuned_begins_with_the_weights_and_leaves_them(pretrained, tmp_path):
    still = ["train.lr=1e-12", "train.weight_decay=0.0", "train.epochs=1"]
    job.begin(recipe(pretrained, "classify", *still), tmp_path / "still", "cpu")
    job.begin(recipe(pretrained, "classify", "train.epochs=2"), tmp_path / "tuned", "cpu")
    before = dict(load(pretrained).named_parameters())
    for folder, moved in (("still", 1e-9), ("tuned", None)):
        for name, weight in load(tmp_path / folder).named_parameters():
            if name in before and moved is not None:
                torch.testing.assert_close(weight, before[name], rtol=0, atol=moved)
            elif name in before:
                assert not torch.equal(weight, before[name]), name


def test_without_a_folder_it_reads_characters_too_and_goes_on_after_a_stop(tmp_path, monkeypatch):
    wanted = recipe(None, "tag", "train.epochs=3", "model.mix=top", "model.task_dropout=0.2")
    job.begin(wanted, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        job.begin(wanted, tmp_path / "parts", "cpu")
    job.resume(tmp_path / "parts", "cpu")
    one, other = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert all(one[name].equal(other[name]) for name in one)
    assert load(tmp_path / "parts").task.mix.weights.shape == (1,)


def test_the_words_that_are_predicted_are_asked_for_as_words():
    with pytest.raises(InputError, match=r"data\.vocabulary 'bpe:50' is not for two-way language modelling; use word"):
        read_recipe("imdb-elmo", ["data.vocabulary=bpe:50"])
