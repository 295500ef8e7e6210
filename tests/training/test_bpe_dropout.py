"""BPE-dropout: the same pairs are segmented differently in every epoch."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from qkv.tasks.base.task import train_tokenizer
from qkv.tasks.translation import TranslationTask
from qkv.training import job
from qkv.training.recipe import Recipe

from .stopping import stop_after

MAX_LENGTH = 24


@pytest.fixture
def subwords(tiny: Recipe) -> Recipe:
    return tiny.replace(
        data=tiny.data.replace(tokenizer={"name": "bpe", "vocab_size": 200}),
        model=tiny.model.replace(max_length=MAX_LENGTH),
        task=tiny.task.replace(bpe_dropout=0.3),
        train=tiny.train.replace(epochs=2, validate_every=1000),
    )


def prepare(recipe: Recipe, **options: float) -> TranslationTask:
    data = recipe.data.load()
    tokenizer = train_tokenizer(data, recipe.data)
    model = recipe.model.replace(**TranslationTask.sizes(data, tokenizer))
    return TranslationTask(data, tokenizer, model, recipe.task.replace(**options), recipe.train, recipe.seed)


def segmentation(task: TranslationTask, epoch: int) -> list[tuple[list[int], list[int]]]:
    task.epoch(epoch)
    return [(list(pair.source), list(pair.target)) for pair in task.epoch_pairs]


def test_every_epoch_segments_the_same_texts_differently(subwords):
    task = prepare(subwords)
    first, second = segmentation(task, 0), segmentation(task, 1)
    assert sum(left != right for left, right in zip(first, second, strict=True)) > len(first) / 2
    for pair, (source, target) in zip(task.train.pairs, first, strict=True):
        assert task.tokenizer.decode(source) == task.tokenizer.normalize(pair.source)
        assert task.tokenizer.decode(target) == task.tokenizer.normalize(pair.target)


def test_seed_and_epoch_determine_the_segmentation(subwords):
    task, again, other = prepare(subwords), prepare(subwords), prepare(subwords.replace(seed=1))
    assert segmentation(task, 0) != segmentation(task, 2)
    assert segmentation(task, 2) == segmentation(again, 2) != segmentation(other, 2)


def test_a_pair_that_would_exceed_max_length_is_segmented_without_dropout(subwords):
    task = prepare(subwords, bpe_dropout=0.9)
    task.epoch(0)
    assert max(pair.length for pair in task.epoch_pairs) <= MAX_LENGTH
    kept = sum(now is plain for now, plain in zip(task.epoch_pairs, task.train.tokens, strict=True))
    assert 0 < kept < len(task.epoch_pairs)


def test_validation_data_are_segmented_without_dropout(subwords):
    task, plain = prepare(subwords), prepare(subwords, bpe_dropout=0.0)
    task.epoch(0)
    assert task.valid == plain.valid


def test_resuming_is_bit_exact(subwords, tmp_path: Path, monkeypatch):
    whole = job.begin(subwords, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        stop_after(patch, whole.state.step // 2 + 1)
        assert not job.begin(subwords, tmp_path / "parts", "cpu").state.finished
    parts = job.resume(tmp_path / "parts", "cpu")
    expected, resumed = (load_file(done.run.checkpoints[-1] / "model.safetensors") for done in (whole, parts))
    assert all(expected[key].equal(resumed[key]) for key in expected)
