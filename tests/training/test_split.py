"""Batches split into parts: the weighted losses and gradients of the parts sum to those of the batch."""

import json

import pytest
import torch

from qkv.datasets.batching import PairBatch
from qkv.errors import InputError
from qkv.training import job
from qkv.training.display import Display
from qkv.training.recipe import read_recipe

from .stopping import assert_bit_equal, stop_after
from .test_cuda_graph_tasks import RECIPES as SYNTHETIC
from .test_cuda_graph_tasks import _synthetic_data as _synthetic_data

RECIPES = SYNTHETIC | {
    "shapes-attend": ["data.size=30", "model.dropout=0.0"],
    "dates-gru": ["data.size=60", "model.dropout=0.0", "model.hidden_dim=8", "train.batch_size=256"],
    "shakespeare-gru": ["model.hidden_dim=8", "model.embedding_dim=8", "model.dropout=0.0", "model.weight_dropout=0.0"],
}


@pytest.fixture(autouse=True)
def _data(_synthetic_data):
    """Small random data instead of the real ones."""


def prepare(name, *changes):
    size = {"fashion-vit": 16, "shapes-attend": 16, "shakespeare-gru": 1024}.get(name, 64)
    recipe = read_recipe(name, [*RECIPES[name], f"train.batch_size={size}", *changes])
    _, _, task, model = job._prepare(recipe, None, "cpu", Display(), force=True)
    return task, model


def gradients(task, model, parts):
    model.zero_grad()
    loss = sum(fraction * task.loss(model, part) for part, fraction in parts)
    loss.backward()
    return loss.detach(), {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("name", RECIPES)
def test_parts_sum_to_the_batch(name):
    task, model = prepare(name)
    model.train()
    rows = task.epoch(0)[0]
    batch = task.batch(rows, padded_to_shape=True)  # the last part has padding rows
    parts = batch.split(3)
    assert sum(fraction for _, fraction in parts) == pytest.approx(1.0)
    assert sum(part.tokens for part, fraction in parts if fraction) == batch.tokens
    expected, expected_gradients = gradients(task, model, [(batch, 1.0)])
    loss, parameters = gradients(task, model, parts)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    assert parameters.keys() == expected_gradients.keys()
    for key, gradient in parameters.items():
        torch.testing.assert_close(gradient, expected_gradients[key], rtol=1e-4, atol=1e-5)


def test_a_batch_with_fewer_rows_than_parts_has_parts_of_weight_zero():
    task, model = prepare("dates-gru")
    batch = task.batch(task.epoch(0)[0][:2])
    parts = batch.split(4)
    assert [fraction > 0 for _, fraction in parts] == [True, True, False, False]
    expected, _ = gradients(task, model, [(batch, 1.0)])
    loss, _ = gradients(task, model, parts)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)


def test_a_batch_that_does_not_count_its_tokens_cannot_be_split():
    class Uncounted(PairBatch):
        count_tokens = PairBatch.__mro__[1].count_tokens

    task, _ = prepare("dates-gru")
    batch = task.batch([0, 1])
    with pytest.raises(InputError, match="count_tokens"):
        Uncounted(**batch.tensors, tokens=batch.tokens).split(2)


def test_bandit_batches_cannot_be_split(tmp_path):
    recipe = read_recipe("bandit-snail", ["train.epochs=1", "train.accumulate=2"])
    with pytest.raises(InputError, match="cannot be split"):
        job.begin(recipe, tmp_path / "run", "cpu", force=True)


def test_more_parts_than_streams_are_rejected(tiny_text, tmp_path):
    with pytest.raises(InputError, match="stream"):
        job.begin(tiny_text.replace(train=tiny_text.train.replace(accumulate=5)), tmp_path / "run", "cpu")


def losses(folder):
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if record["kind"] == "train"]


@pytest.mark.parametrize("interrupted", [False, True])
def test_accumulation_carries_the_state_of_each_part(interrupted, tiny_text, tmp_path, monkeypatch):
    """A recurrent language model without dropout: the same losses in one, two and three parts, also when resumed."""
    monkeypatch.setattr("qkv.training.loop.LOG_EVERY", 1)
    model = tiny_text.model.replace(dropout=0.0, weight_dropout=0.0)
    recipes = [tiny_text.replace(model=model, train=tiny_text.train.replace(accumulate=n, epochs=2)) for n in (1, 2, 3)]
    for number, recipe in enumerate(recipes):
        with monkeypatch.context() as patch:
            if interrupted and number:
                stop_after(patch, 5)
            state = job.begin(recipe, tmp_path / str(number), "cpu").state
        if not state.finished:
            job.resume(tmp_path / str(number), "cpu")
    expected = losses(tmp_path / "0")
    assert len(expected) > 10
    for number in (1, 2):
        assert losses(tmp_path / str(number)) == pytest.approx(expected, abs=1e-5)


def test_a_resumed_run_with_accumulation_ends_bit_for_bit_like_an_uninterrupted_one(tiny_text, tmp_path, monkeypatch):
    recipe = tiny_text.replace(train=tiny_text.train.replace(accumulate=2))
    job.begin(recipe, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        job.begin(recipe, tmp_path / "parts", "cpu")
    job.resume(tmp_path / "parts", "cpu")
    assert_bit_equal(tmp_path / "whole", tmp_path / "parts")
