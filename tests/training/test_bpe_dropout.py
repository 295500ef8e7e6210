"""BPE-dropout: the same pairs, cut into other subwords in every epoch."""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from qkv.data.registry import learn_vocabulary, load_data
from qkv.models import MODELS
from qkv.tasks.translation import TranslationTask
from qkv.training import job
from qkv.training.recipe import Recipe

LONGEST = 24


@pytest.fixture
def subwords(tiny: Recipe) -> Recipe:
    return replace(
        tiny,
        data=replace(tiny.data, vocabulary="bpe:200"),
        model=tiny.model | {"max_length": LONGEST},
        train=replace(tiny.train, bpe_dropout=0.3, epochs=2, validate_every=1000),
    )


def prepared(recipe: Recipe) -> TranslationTask:
    data = load_data(recipe.data)
    vocabulary = learn_vocabulary(data, recipe.data)
    _, config = MODELS[recipe.model["name"]]
    model = config(**TranslationTask.sizes(data, vocabulary), max_length=LONGEST)
    return TranslationTask.prepare(data, vocabulary, model, recipe.train, recipe.seed)


def shown(task: TranslationTask, epoch: int) -> list[tuple[list[int], list[int]]]:
    task.epoch(epoch)
    return [(list(pair.source), list(pair.target)) for pair in task.epoch_pairs]


def test_every_epoch_cuts_the_same_texts_otherwise(subwords):
    task = prepared(subwords)
    first, second = shown(task, 0), shown(task, 1)
    assert sum(one != other for one, other in zip(first, second, strict=True)) > len(first) / 2
    for pair, (source, target) in zip(task.train.pairs, first, strict=True):
        assert task.vocabulary.decode(source) == task.vocabulary.normalize(pair.source)
        assert task.vocabulary.decode(target) == task.vocabulary.normalize(pair.target)


def test_the_seed_and_the_number_of_the_epoch_decide_the_cuts(subwords):
    task, again, other = prepared(subwords), prepared(subwords), prepared(replace(subwords, seed=1))
    assert shown(task, 0) != shown(task, 2)
    assert shown(task, 2) == shown(again, 2) != shown(other, 2)


def test_a_pair_that_would_get_too_long_for_the_model_stays_as_it_is(subwords):
    task = prepared(replace(subwords, train=replace(subwords.train, bpe_dropout=0.9)))
    task.epoch(0)
    assert max(pair.length for pair in task.epoch_pairs) <= LONGEST
    kept = sum(now is plain for now, plain in zip(task.epoch_pairs, task.train.tokens, strict=True))
    assert 0 < kept < len(task.epoch_pairs)


def test_validation_is_never_cut_otherwise(subwords):
    task, plain = prepared(subwords), prepared(replace(subwords, train=replace(subwords.train, bpe_dropout=0.0)))
    task.epoch(0)
    assert task.valid == plain.valid


def test_an_interrupted_run_ends_bit_for_bit_like_one_that_was_not(subwords, tmp_path: Path, monkeypatch):
    whole = job.begin(subwords, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        asked = iter([False] * (whole.place.step // 2) + [True] * 100)
        patch.setattr("qkv.training.interrupt.Interrupt.__bool__", lambda self: next(asked))
        assert not job.begin(subwords, tmp_path / "parts", "cpu").place.finished
    parts = job.resume(tmp_path / "parts", "cpu")
    one, other = (load_file(done.run.checkpoints[-1] / "model.safetensors") for done in (whole, parts))
    assert all(one[key].equal(other[key]) for key in one)
