"""From a recipe to a trained model: data, vocabulary, model, run, loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.data.characters import Characters
from qkv.data.registry import load_data
from qkv.errors import CheckpointError
from qkv.interop.folder import read_config
from qkv.models import MODELS
from qkv.runtime.device import pick_device
from qkv.runtime.randomness import seed_everything
from qkv.training.display import Display
from qkv.training.initial import continued_config, set_aside, start_of, take_over
from qkv.training.loop import train
from qkv.training.memory import check_memory, naming_checkpoint
from qkv.training.recipe import TASKS, Recipe
from qkv.training.run import Place, Run


@dataclass(frozen=True)
class Job:
    """What became of a training job."""

    run: Run
    place: Place


def begin(
    recipe: Recipe, folder: Path, device: str = "auto", display: Display | None = None, *, force: bool = False
) -> Job:
    """Train a recipe into a new folder; with `force` also where memory seems too small."""
    return _work(Run.new(folder, recipe), device, display or Display(), force)


def resume(
    folder: Path,
    device: str = "auto",
    display: Display | None = None,
    assignments: Sequence[str] = (),
    *,
    force: bool = False,
) -> Job:
    """Resume a run from its newest checkpoint; `assignments` change keys of `train` from there on."""
    run = Run.open(folder)
    return _work(run.changed(assignments) if assignments else run, device, display or Display(), force)


def _work(run: Run, device: str, display: Display, force: bool) -> Job:
    recipe = run.recipe
    where = pick_device(device)
    kind = TASKS[recipe.task]
    network = MODELS[recipe.model["name"]][0]
    data = load_data(recipe.data)
    resumed = bool(run.checkpoints)
    start = None if resumed else start_of(recipe)
    vocabulary = run.vocabulary or (
        kind.learn_vocabulary(data, recipe.data, recipe.model_config()) if start is None else start.tokenizer
    )
    if resumed:
        saved, config = read_config(run.checkpoints[-1])
        if saved is not network:
            raise CheckpointError(
                f"{run.checkpoints[-1]}: holds a {saved.__name__}, but the run trains a {network.__name__}"
            )
    elif start is not None:
        config = continued_config(recipe, start, kind.sizes(data, vocabulary))
    else:
        config = recipe.model_config(kind.sizes(data, vocabulary))
    task = kind.prepare(data, vocabulary, config, recipe.train, recipe.seed)
    if not force:
        check_memory(recipe, network, config, task, where, display.say)
    seed_everything(recipe.seed)
    model: Any = network(config)
    fresh = [] if start is None else take_over(model, start)
    model = model.to(where)
    size = sum(parameter.numel() for parameter in model.parameters())
    display.say(
        f"{recipe.data.name}  {task.describe()}{_described(recipe, vocabulary)}    "
        f"{recipe.model['name']}  {size / 1e6:.2f} M parameters    {where}"
    )
    if start is not None:
        new = f"new are {', '.join(fresh)}" if fresh else "nothing is new"
        display.say(f"begins with the weights of {recipe.init}; {new}")
    from_scratch = () if resumed or recipe.init is not None else task.notes_from_scratch()
    for note in (*task.notes, *from_scratch, *set_aside(recipe, start)):
        display.say(f"note: {note}")
    # Everything that could be wrong with the input has been checked: only now is the run's folder created.
    with run.held(), naming_checkpoint(run):
        return Job(run, train(run, task, model, data.fingerprint, display))


def _described(recipe: Recipe, vocabulary: Any) -> str:
    """How texts are split, and into how many different tokens; nothing where there are none."""
    if vocabulary is None:
        return ""
    if recipe.init is not None:
        return "  the tokenizer that it begins with"
    if isinstance(vocabulary, Characters):
        return "  the characters of words"
    source = f"  vocabulary {recipe.data.vocabulary} ({len(vocabulary.source):,})"
    if vocabulary.target is vocabulary.source:
        return source
    return f"{source} to {recipe.data.target_vocabulary} ({len(vocabulary.target):,})"
