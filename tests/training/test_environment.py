"""The precision of a run, and the operations of a step that it depends on."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from qkv.hub.checkpoint_manifest import read_manifest
from qkv.training import environment, job
from qkv.training.display import Display
from qkv.training.environment import choose_precision, step_operations
from qkv.training.recipe import read_recipe

from .conftest import TINY


@pytest.fixture(scope="module")
def prepared():
    recipe = read_recipe("dates-transformer", ["data.size=60", "train.batch_size=200"])
    _, _, task, model = job._prepare(recipe, None, "cpu", Display(), force=True)
    return recipe, task, model


def test_the_operations_of_a_step_are_three_times_those_of_the_forward_pass(prepared):
    recipe, task, model = prepared
    batch = task.batch(task.epoch(0)[0], padded_to_shape=True)
    assert len(batch.source) > 1
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        task.loss(model, batch)
    assert step_operations(model, task, recipe.train) == 3 * counter.get_total_flops() > 0


def test_counting_changes_neither_weights_nor_random_state(prepared):
    recipe, task, model = prepared
    weights, random = [weight.clone() for weight in model.parameters()], torch.get_rng_state()
    step_operations(model, task, recipe.train)
    assert all(weight.equal(before) for weight, before in zip(model.parameters(), weights, strict=True))
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    assert torch.get_rng_state().equal(random)
    assert model.training


def test_counting_does_not_change_the_state_carried_by_a_language_model(tiny_text):
    _, _, task, model = job._prepare(tiny_text, None, "cpu", Display(), force=True)
    step_operations(model, task, tiny_text.train)
    assert not task.carried_state()


@pytest.mark.parametrize("operator", environment.SDPA)
def test_attention_with_fewer_key_heads_counts_every_query_head(operator):
    query, key = torch.empty(2, 6, 5, 8, device="meta"), torch.empty(2, 3, 7, 8, device="meta")
    arguments = {"flash": (), "efficient": (None, False), "cudnn": (None, False)}[operator.split("_")[4]]
    with environment._operation_counter() as counter:
        getattr(torch.ops.aten, operator)(query, key, key, *arguments)
    assert counter.get_total_flops() == 2 * (2 * 2 * 6 * 5 * 7 * 8)  # two products of 2 * 6 * 5 * 7 * 8 multiply-adds


@pytest.mark.parametrize("has_products", [True, False])
@pytest.mark.parametrize(("precision", "large", "expected"), [
    ("auto", True, "bfloat16"), ("auto", False, "float32"),
    ("float32", True, "float32"), ("bfloat16", False, "bfloat16"),
])  # fmt: skip
def test_bfloat16_is_chosen_for_large_steps(prepared, monkeypatch, has_products, precision, large, expected):
    _, task, model = prepared
    config = read_recipe("dates-transformer", [f"train.precision={precision}"]).train
    operations = step_operations(model, task, config)
    monkeypatch.setattr(environment, "BFLOAT16_OPERATIONS", operations if large else operations + 1)
    monkeypatch.setattr(environment, "has_bfloat16_products", lambda: has_products)
    expected = expected if has_products or precision == "bfloat16" else "float32"
    assert choose_precision(model, task, config) == expected


def test_a_run_in_bfloat16_learns_and_records_its_precision(tmp_path):
    recipe = read_recipe("dates-gru", [*TINY, "train.precision=bfloat16"])
    run = job.begin(recipe, tmp_path / "run", "cpu").run
    assert read_manifest(run.checkpoints[-1])["precision"] == "bfloat16"
    losses = [json.loads(line)["loss"] for line in (run.folder / "log.jsonl").read_text().splitlines()
              if json.loads(line)["kind"] == "train"]  # fmt: skip
    assert losses[-1] < 0.9 * losses[0]


def test_a_device_recorded_as_1_threads_is_the_same_device(prepared, monkeypatch):
    recipe, task, model = prepared
    monkeypatch.setattr("qkv.runtime.provenance.device_name", lambda device: "AMD EPYC, 1 thread")
    here = environment.current_environment(model, task, recipe.train)
    assert here.differences({"device": "AMD EPYC, 1 threads"}) == ()
    assert len(here.differences({"device": "AMD EPYC, 2 threads"})) == 1
