"""Train a recipe: load data, tokenizer and model, then run the training loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.errors import CheckpointError
from qkv.hub.model_folder import ModelFolder
from qkv.runtime.device import pick_device
from qkv.tokenizers import Tokenizer
from qkv.training.display import Display
from qkv.training.finetune import copy_matching_weights, ignored_keys, load_pretrained, pretrained_config
from qkv.training.loop import train
from qkv.training.memory_estimate import check_memory, explain_out_of_memory
from qkv.training.recipe import Recipe
from qkv.training.run import Run, TrainState


@dataclass(frozen=True)
class Job:
    """A run and its state when training stopped."""

    run: Run
    state: TrainState


def begin(
    recipe: Recipe, folder: Path, device: str = "auto", display: Display | None = None, *, force: bool = False
) -> Job:
    """Train a recipe into a new folder; `force` skips the memory check."""
    return _train(Run.new(folder, recipe), device, display or Display(), force)


def resume(
    folder: Path,
    device: str = "auto",
    display: Display | None = None,
    assignments: Sequence[str] = (),
    *,
    force: bool = False,
) -> Job:
    """Resume a run from its newest checkpoint; `assignments` override keys of `train` from there on."""
    run = Run.open(folder)
    return _train(run.with_overrides(assignments) if assignments else run, device, display or Display(), force)


def _train(run: Run, device: str, display: Display, force: bool) -> Job:
    recipe = run.recipe
    torch_device = pick_device(device)
    task_class, network = recipe.task_class, recipe.model_class
    data = recipe.data.load()
    resumed = bool(run.checkpoints)
    pretrained = None if resumed else load_pretrained(recipe)
    if resumed:
        tokenizer = run.tokenizer
    elif pretrained is not None:
        tokenizer = pretrained.tokenizer
    else:
        tokenizer = task_class.train_tokenizer(data, recipe.data, recipe.model)
    if resumed:
        saved = ModelFolder(run.checkpoints[-1])
        config = saved.config
        if saved.network is not network:
            raise CheckpointError(
                f"{run.checkpoints[-1]}: holds a {saved.network.__name__}, but the run trains a {network.__name__}"
            )
    elif pretrained is not None:
        config = pretrained_config(recipe, pretrained, task_class.sizes(data, tokenizer))
    else:
        config = recipe.model.replace(**task_class.sizes(data, tokenizer))
    task = task_class.prepare(data, tokenizer, config, recipe.task, recipe.train, recipe.seed)
    if not force:
        check_memory(recipe, network, config, task, torch_device, display.print)
    torch.manual_seed(recipe.seed)
    model: Any = network(config)
    fresh = [] if pretrained is None else copy_matching_weights(model, pretrained)
    model = model.to(torch_device)
    size = sum(parameter.numel() for parameter in model.parameters())
    display.print(
        f"{recipe.data.registered_name}  {task.describe()}{_describe_tokenizer(recipe, tokenizer)}    "
        f"{recipe.model.registered_name}  {size / 1e6:.2f} M parameters    {torch_device}"
    )
    if pretrained is not None:
        random = f"randomly initialized: {', '.join(fresh)}" if fresh else "all weights were loaded"
        display.print(f"initialized from {recipe.init}; {random}")
    from_scratch = () if resumed or recipe.init is not None else task.notes_from_scratch()
    for note in (*task.notes, *from_scratch, *ignored_keys(recipe, pretrained)):
        display.print(f"note: {note}")
    # All input has been checked: only now is the run's folder created.
    with run.lock(), explain_out_of_memory(run):
        return Job(run, train(run, task, model, data.fingerprint, display))


def _describe_tokenizer(recipe: Recipe, tokenizer: Tokenizer | None) -> str:
    """Describe the tokenizer and the size of its vocabulary; "" without one."""
    if tokenizer is None:
        return ""
    if recipe.init is not None:
        return "  tokenizer of init"
    data: Any = recipe.data
    source = f"  tokenizer {data.tokenizer.name} ({len(tokenizer.source):,})"
    if tokenizer.target is tokenizer.source:
        return source
    return f"{source} to {data.target_tokenizer.name} ({len(tokenizer.target):,})"
