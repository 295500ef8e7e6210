"""EMA: its formula, its use in validation and checkpoints, and resuming."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import qkv
from qkv.registry import lookup
from qkv.training import job, loop
from qkv.training.ema import EMA
from qkv.training.recipe import Recipe

from .stopping import stop_after


def test_ema_matches_its_formula():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    ema, expected = EMA(model, 0.8), model.weight.detach().clone()
    for step in range(1, 60):
        with torch.no_grad():
            model.weight += torch.randn_like(model.weight)
        raw = model.weight.detach().clone()
        ema.update(step)
        assert model.weight.equal(raw)
        decay = min(0.8, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * raw
    torch.testing.assert_close(ema.module.weight.detach(), expected, rtol=1e-12, atol=1e-12)


def test_saved_averages_are_restored():
    model = nn.Linear(2, 1)
    ema, raw = EMA(model, 0.5), model.weight.detach().clone()
    ema.restore({"weight": torch.full((1, 2), 5.0), "bias": torch.zeros(1)})
    assert ema.module.weight.tolist() == [[5.0, 5.0]]
    assert model.weight.equal(raw)


def test_position_tables_may_grow():
    network = lookup("model", "transformer")
    model = network(
        network.config_class(
            source_vocab_size=9, target_vocab_size=9, dim=8, heads=2, encoder_layers=1, decoder_layers=1, ffn_dim=8
        )
    )
    ema = EMA(model, 0.5)
    for step, length in enumerate((2, 5, 3), start=1):
        tokens = torch.zeros(1, length, dtype=torch.long)
        model(tokens, tokens, torch.tensor([length]))
        ema.update(step)
        ema.module(tokens, tokens, torch.tensor([length]))


def with_ema(recipe: Recipe) -> Recipe:
    return recipe.replace(train=recipe.train.replace(ema=0.9))


def test_averaged_weights_are_validated_saved_and_loaded(tiny_text, tmp_path):
    done = job.begin(with_ema(tiny_text), tmp_path / "run", "cpu")
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
    task = load_task(tiny_text, model)
    assert task.validate(model)["loss"] == pytest.approx(last["loss"], rel=1e-6)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(raw[name])
    assert task.validate(model)["loss"] != pytest.approx(last["loss"], rel=1e-4)


def load_task(recipe: Recipe, model: qkv.hub.Network) -> loop.Task:
    data = recipe.data.load()
    return recipe.task_class(data, model.tokenizer, model.config, recipe.task, recipe.train, recipe.seed)


def test_ema_does_not_change_training(tiny_text, tmp_path):
    plain, averaged = (
        job.begin(recipe, tmp_path / name, "cpu").run.checkpoints[-1]
        for name, recipe in (("plain", tiny_text), ("averaged", with_ema(tiny_text)))
    )
    weights, training = load_file(plain / "model.safetensors"), load_file(averaged / "training.safetensors")
    assert all(value.equal(training[f"weight.{name}"]) for name, value in weights.items())


def test_resuming_with_ema_is_bit_exact(tiny_text, tmp_path: Path, monkeypatch):
    recipe = with_ema(tiny_text)
    whole = job.begin(recipe, tmp_path / "whole", "cpu")
    with monkeypatch.context() as patch:
        stop_after(patch, 13)
        assert not job.begin(recipe, tmp_path / "parts", "cpu").state.finished
    parts = job.resume(tmp_path / "parts", "cpu")
    for name in ("model.safetensors", "training.safetensors"):
        expected, resumed = (load_file(done.run.checkpoints[-1] / name) for done in (whole, parts))
        assert expected.keys() == resumed.keys()
        assert all(expected[key].equal(resumed[key]) for key in expected)
