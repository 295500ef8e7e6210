"""The moving average of the weights: what it is, what is done with it, and that nothing of it is lost."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import qkv
from qkv.training import job, loop
from qkv.training.average import Average
from qkv.training.recipe import Recipe


def test_the_average_follows_its_formula():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    average, expected = Average(model, 0.8), model.weight.detach().clone()
    for step in range(1, 60):
        with torch.no_grad():
            model.weight += torch.randn_like(model.weight)
        average.update(step)
        decay = min(0.8, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    raw = model.weight.detach().clone()
    with average.used() as waiting:
        torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-12, atol=1e-12)
        assert waiting["weight"].equal(raw)
    assert model.weight.equal(raw)


def test_the_weights_come_back_when_their_use_ends_in_an_error():
    model = nn.Linear(3, 2)
    average = Average(model, 0.5)
    with torch.no_grad():
        model.weight += 1.0
    raw = model.weight.detach().clone()
    with pytest.raises(RuntimeError), average.used():
        raise RuntimeError
    assert model.weight.equal(raw)


def test_the_model_keeps_its_memory():
    model = nn.Linear(3, 2)
    average, place = Average(model, 0.5), model.weight.data_ptr()
    with average.used():
        assert model.weight.data_ptr() == place
    assert model.weight.data_ptr() == place


def test_without_an_average_the_weights_themselves_are_used():
    model = nn.Linear(3, 2)
    average = Average(model, 0.0)
    with torch.no_grad():
        model.weight += 1.0
    average.update(1)
    raw = model.weight.detach().clone()
    with average.used() as waiting:
        assert model.weight.equal(raw)
        assert waiting == {}


def averaged(recipe: Recipe) -> Recipe:
    return replace(recipe, train=replace(recipe.train, ema=0.9))


def test_the_average_is_what_is_validated_saved_and_loaded(tiny_text, tmp_path):
    done = job.begin(averaged(tiny_text), tmp_path / "run", "cpu")
    newest = done.run.checkpoints[-1]
    training = load_file(newest / "training.safetensors")
    saved = load_file(newest / "model.safetensors")
    raw = {name.removeprefix("weight."): value for name, value in training.items() if name.startswith("weight.")}
    assert raw.keys() == saved.keys()
    assert not any(raw[name].equal(saved[name]) for name in raw)
    model = qkv.load(newest)
    assert all(parameter.equal(saved[name]) for name, parameter in model.named_parameters())
    log = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    last = [record for record in log if record["kind"] == "valid"][-1]
    task = loaded_task(tiny_text, model)
    assert task.validate(model)["loss"] == pytest.approx(last["loss"], rel=1e-6)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(raw[name])
    assert task.validate(model)["loss"] != pytest.approx(last["loss"], rel=1e-4)


def loaded_task(recipe: Recipe, model: qkv.interop.Network) -> loop.Task:
    from qkv.data.registry import load_data
    from qkv.training.recipe import TASKS

    return TASKS[recipe.task].prepare(load_data(recipe.data), model.tokenizer, model.config, recipe.train, recipe.seed)


def test_training_goes_on_as_without_an_average(tiny_text, tmp_path):
    plain, with_average = (
        job.begin(recipe, tmp_path / name, "cpu").run.checkpoints[-1]
        for name, recipe in (("plain", tiny_text), ("averaged", averaged(tiny_text)))
    )
    weights, training = load_file(plain / "model.safetensors"), load_file(with_average / "training.safetensors")
    assert all(value.equal(training[f"weight.{name}"]) for name, value in weights.items())


def test_an_interrupted_average_ends_bit_for_bit_like_one_that_was_not(tiny_text, tmp_path: Path, monkeypatch):
    recipe = averaged(tiny_text)
    whole = job.begin(recipe, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        asked = iter([False] * 12 + [True] * 100)
        patch.setattr("qkv.training.interrupt.Interrupt.__bool__", lambda self: next(asked))
        assert not job.begin(recipe, tmp_path / "parts", "cpu").place.finished
    parts = job.resume(tmp_path / "parts", "cpu")
    for name in ("model.safetensors", "training.safetensors"):
        one, other = (load_file(done.run.checkpoints[-1] / name) for done in (whole, parts))
        assert one.keys() == other.keys()
        assert all(one[key].equal(other[key]) for key in one)
