"""Memory of training: estimated before anything is allocated, and named when it runs out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qkv.errors import InputError, OutOfMemory
from qkv.registry import lookup
from qkv.runtime import memory
from qkv.tasks.translation import TranslationTask
from qkv.training import job
from qkv.training.ema import EMA
from qkv.training.memory_estimate import state_memory
from qkv.training.optimizer import adamw
from qkv.training.recipe import Recipe, TrainConfig
from qkv.training.run import Run

from .stopping import assert_bit_equal

# Prints the estimate and the measured growth of the process in the forward and backward pass of one batch.
MEASURE = """
import json, re, sys, torch
from qkv.training.memory_estimate import activation_memory
from qkv.training.recipe import read_recipe

def resident(key):
    return 1024 * int(re.search(rf"{key}:\\s+(\\d+)", open("/proc/self/status").read())[1])

torch.set_num_threads(1)
recipe = read_recipe(sys.argv[1], sys.argv[2:])
task_class, network, data = recipe.task_class, recipe.model_class, recipe.data.load()
tokenizer = task_class.train_tokenizer(data, recipe.data, recipe.model)
config = recipe.model.replace(**task_class.sizes(data, tokenizer))
task = task_class(data, tokenizer, config, recipe.task, recipe.train, recipe.seed)
estimate = activation_memory(network, config, task, torch.device("cpu"))
model = network(config).train()
batch = task.batch(max(task.epoch(0), key=len))
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from here
before = resident("VmRSS")
task.loss(model, batch).backward()
print(json.dumps([estimate, resident("VmHWM") - before]))
"""


@pytest.mark.parametrize(
    ("recipe", "assignments"),
    [
        ("dates-gru", ["data.size=600", "train.batch_size=20000"]),
        ("dates-transformer", ["data.size=600", "train.batch_size=20000"]),
        ("shapes-attend", ["data.size=200", "train.batch_size=100"]),
    ],
)
def test_the_estimate_of_activations_is_within_a_factor_of_two(recipe: str, assignments: list[str]) -> None:
    command = [sys.executable, "-c", MEASURE, recipe, *assignments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    estimate, measured = json.loads(done.stdout)
    assert measured > 50e6  # more than the noise
    assert measured / 2 < estimate < 2 * measured


def test_the_state_of_training_is_counted_without_allocating_it() -> None:
    network = lookup("model", "transformer")
    config = network.config_class
    sizes = config(source_vocab_size=50, target_vocab_size=50, dim=32, heads=2, ffn_dim=64)
    model = network(sizes)
    optimizer, ema = adamw(model.parameters(), TrainConfig()), EMA(model, 0.9)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    with torch.device("meta"):
        parts = state_memory(network(sizes), ema=0.9)
    assert parts["gradients"] == sum(parameter.grad.nbytes for parameter in model.parameters())
    assert parts["optimizer"] == sum(value.nbytes for value in moments)
    assert parts["EMA"] == sum(value.nbytes for value in (*ema.module.parameters(), *ema.module.buffers()))
    assert state_memory(network(sizes)) == parts | {"EMA": 0}


def test_a_model_larger_than_free_memory_is_refused_before_it_is_made(tiny: Recipe, tmp_path: Path) -> None:
    large = tiny.replace(model=tiny.model.replace(hidden_dim=2**20))
    with pytest.raises(InputError, match=r"model\.hidden_dim") as caught:
        job.begin(large, tmp_path / "run", "cpu")
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "run").exists()


def test_activations_far_beyond_free_memory_are_refused(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.training.memory_estimate.activation_memory", lambda *arguments: 2**60)
    with pytest.raises(InputError, match="batch_size"):
        job.begin(tiny, tmp_path / "run", "cpu")
    done = job.begin(tiny.replace(train=tiny.train.replace(epochs=1)), tmp_path / "run", "cpu", force=True)
    assert done.state.finished


def test_the_estimate_does_not_change_what_is_trained(tiny: Recipe, tmp_path: Path) -> None:
    for name, force in (("checked", False), ("forced", True)):
        job.begin(tiny.replace(train=tiny.train.replace(epochs=1)), tmp_path / name, "cpu", force=force)
    assert_bit_equal(tmp_path / "checked", tmp_path / "forced")


def test_a_refused_run_can_be_forced(tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    with pytest.raises(InputError, match="--force"):
        job.begin(tiny, tmp_path / "run", "cpu")
    one = tiny.replace(train=tiny.train.replace(epochs=1))
    assert job.begin(one, tmp_path / "run", "cpu", force=True).state.finished


def test_running_out_of_memory_names_the_last_checkpoint_and_how_to_resume(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, steps = TranslationTask.loss, iter(range(100))

    def running_out(task: TranslationTask, model: object, batch: object) -> torch.Tensor:
        if next(steps) >= 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(task, model, batch)

    monkeypatch.setattr(TranslationTask, "loss", running_out)
    with pytest.raises(OutOfMemory) as caught:
        job.begin(tiny, tmp_path / "run", "cpu", force=True)
    last = Run.open(tmp_path / "run").checkpoints[-1]
    for part in ("train.batch_size", str(last), f"--resume {tmp_path / 'run'}"):
        assert part in str(caught.value)
