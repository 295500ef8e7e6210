"""Train a recipe: load data, tokenizer and model, then run the training loop."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.datasets.dataset import Dataset
from qkv.errors import CheckpointError, InputError
from qkv.hub.model_folder import ModelFolder
from qkv.runtime import provenance
from qkv.runtime.device import pick_device
from qkv.tasks.base.task import Task
from qkv.tokenizers import Tokenizer
from qkv.training.data_warnings import data_warnings, scratch_warnings
from qkv.training.display import Display
from qkv.training.distributed import is_main, main_first, on_main, require_same
from qkv.training.finetune import (
    copy_matching_weights,
    ignored_keys,
    load_pretrained,
    pretrained_config,
    with_image_size,
)
from qkv.training.log import DEFAULT_LOGGERS, check_loggers
from qkv.training.loop import seconds_per_step, train
from qkv.training.memory_estimate import check_memory, explain_out_of_memory
from qkv.training.recipe import Recipe
from qkv.training.run import Run, TrainState


@dataclass(frozen=True)
class Job:
    """A run and its state when training stopped."""

    run: Run
    state: TrainState
    main: bool = True  # whether this is the first of several processes, or the only one


@dataclass(frozen=True)
class DryRun:
    """What a run would train, and how long it would take."""

    recipe: dict[str, Any]  # with the sizes of the data
    data: dict[str, int]  # number of examples of each split
    unit: str  # of the examples
    tokenizer: str
    vocab_size: int | None
    parameters: int
    steps_per_epoch: int  # of the first epoch
    steps: int
    seconds: float  # estimated from a few steps, without validation
    device: str


def begin(
    recipe: Recipe,
    folder: Path,
    device: str = "auto",
    *,
    force: bool = False,
    overwrite: bool = False,
    display: Display | None = None,
    loggers: Sequence[str] = DEFAULT_LOGGERS,
    profile: bool = False,
) -> Job:
    """Train a recipe into a new folder.

    `force` skips the memory check; `overwrite` deletes another run in the folder once all other input is valid.
    `loggers` receive the values of each step, in addition to log.jsonl. `profile` profiles a few steps.
    """
    recipe = with_image_size(recipe)
    return _train(
        Run.new(folder, recipe, overwrite=overwrite), device, force, display or Display(), loggers, profile=profile
    )


def resume(
    folder: Path,
    device: str = "auto",
    assignments: Sequence[str] = (),
    *,
    force: bool = False,
    strict: bool = False,
    display: Display | None = None,
    loggers: Sequence[str] = DEFAULT_LOGGERS,
    profile: bool = False,
) -> Job:
    """Resume a run from its newest checkpoint; `assignments` override keys of `train` from there on.

    With `strict`, it is an error if the environment has changed since.
    """
    run = Run.open(folder)
    if run.is_packaged:
        raise InputError(f"{folder}: a packaged model cannot be resumed; a new run can start with --set init={folder}")
    run = run.with_overrides(assignments) if assignments else run
    return _train(run, device, force, display or Display(), loggers, strict=strict, profile=profile)


def unfinished(recipe: Recipe, folders: Iterable[Path]) -> Path | None:
    """Return the newest of the runs of a recipe in these folders that is not finished; a single one may be."""
    folders = list(folders)
    runs = []
    for folder in folders:
        try:
            run = Run.open(folder)
        except InputError:
            continue
        if _identity(run.manifest.versions[0].recipe) == _identity(recipe):
            runs.append(run)
    runs = [run for run in runs if len(folders) == 1 or not run.finished]
    newest = max(runs, key=lambda run: (run.checkpoints or [run.folder])[-1].stat().st_mtime, default=None)
    return None if newest is None else newest.folder


def _identity(recipe: Recipe) -> dict[str, Any]:
    """Return all that defines a run: the recipe, whatever options have set its keys."""
    return {**recipe.to_dict(), "overrides": None}


def dry_run(
    recipe: Recipe, folder: Path | None = None, device: str = "auto", *, force: bool = False, overwrite: bool = False
) -> DryRun:
    """Check what `begin` checks, initialize the model and time a few steps; nothing is written."""
    recipe = with_image_size(recipe)
    run = None if folder is None else Run.new(folder, recipe, overwrite=overwrite)
    loaded, tokenizer, task, model = _prepare(recipe, run, device, Display(), force)
    batches = len(task.epoch(0))
    sizes = {split: loaded.size(split) for split in loaded.splits}
    return DryRun(
        recipe={**recipe.to_dict(), "model": {"name": recipe.model.registered_name, **model.config.to_dict()}},
        data={split: size for split, size in sizes.items() if size is not None},
        unit=loaded.unit,
        tokenizer=_describe_tokenizer(recipe, tokenizer).strip().removeprefix("tokenizer "),
        vocab_size=None if tokenizer is None else len(tokenizer),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        steps_per_epoch=batches,
        steps=batches * recipe.train.epochs,
        seconds=batches * recipe.train.epochs * seconds_per_step(task, model, recipe.train),
        device=str(model.device),
    )


def _train(
    run: Run,
    device: str,
    force: bool,
    display: Display,
    loggers: Sequence[str],
    *,
    strict: bool = False,
    profile: bool = False,
) -> Job:
    check_loggers(loggers)
    data, _, task, model = _prepare(run.recipe, run, device, display, force)
    require_same({"data": data.fingerprint, "model": str(model.config), "version of qkv": provenance.source_hash()})
    # All input has been checked: only now is the run's folder created.
    with ExitStack() as stack, explain_out_of_memory(run):
        on_main(lambda: stack.enter_context(run.lock()))
        state = train(run, task, model, data.fingerprint, display, loggers, strict=strict, profile=profile)
        return Job(run, state, is_main())


def _prepare(
    recipe: Recipe, run: Run | None, device: str, display: Display, force: bool
) -> tuple[Dataset[Any], Tokenizer | None, Task, Any]:
    """Return the data, the tokenizer, the task and the initialized model of a recipe.

    A resumed run has the tokenizer and the config of its newest checkpoint.
    """
    if missing := recipe.missing_init():
        raise InputError(missing)
    torch_device = pick_device(device)
    task_class, network = recipe.task_class, recipe.model_class
    data = main_first(recipe.data.load)
    resumed = run if run is not None and run.opened is not None and run.checkpoints else None
    pretrained = None if resumed else load_pretrained(recipe)
    if resumed is not None:
        saved = ModelFolder(resumed.checkpoints[-1])
        tokenizer, config = resumed.tokenizer, saved.config
        if saved.network is not network:
            raise CheckpointError(
                f"{resumed.checkpoints[-1]}: holds a {saved.network.__name__}, but the run trains a {network.__name__}"
            )
    else:
        tokenizer, config = tokenizer_and_config(recipe, data, pretrained)
    task = task_class(data, tokenizer, config, recipe.task, recipe.train, recipe.seed)
    if not force:
        check_memory(recipe, network, config, task, torch_device, display.print)
    if run is not None and is_main():
        run.check_folder()
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
    for note in (*task.notes, *ignored_keys(recipe, pretrained)):
        display.print(f"note: {note}")
    if not resumed and is_main():
        for warning in data_warnings(recipe, data):
            display.print(f"warning: {warning}")
        for warning in scratch_warnings(recipe, data, task, size) if recipe.init is None else ():
            display.print(f"warning: {warning}")
    return data, tokenizer, task, model


def tokenizer_and_config(recipe: Recipe, data: Dataset[Any], pretrained: Any) -> tuple[Any, Any]:
    """Return the tokenizer and the model config of a new run: those of the pretrained model, or fitted to the data."""
    task_class = recipe.task_class
    if pretrained is not None:
        sizes = task_class.sizes(data, pretrained.tokenizer)
        return pretrained.tokenizer, pretrained_config(recipe, pretrained, sizes)
    tokenizer = task_class.train_tokenizer(data, recipe.data, recipe.model)
    sizes = task_class.sizes(data, tokenizer)
    fitting = {key: sizes[key] for key in sizes if key in type(recipe.model).model_fields}
    return tokenizer, recipe.model.replace(**fitting)


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
    target = getattr(tokenizer.target, "registered_name", "")
    return f"{source} to {target} ({len(tokenizer.target):,})"
