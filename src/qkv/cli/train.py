"""`qkv train`: from a recipe to a trained model."""

import shlex
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.talk import result, result_json, say
from qkv.errors import InputError


def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="The name of a recipe, or the path of your own .toml.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key, such as train.lr=3e-4 (keys of train on resume)."
        ),
    ] = None,
    data: options.Data = None,
    valid: Annotated[
        list[Path] | None, typer.Option("--valid", metavar="FILE", help="Validation data; else some are held out.")
    ] = None,
    test: Annotated[
        list[Path] | None, typer.Option("--test", metavar="FILE", help="Test data, for `qkv evaluate`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="The run's folder [runs/RECIPE-SEED].")
    ] = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Resume a run.")] = None,
    list_recipes: Annotated[bool, typer.Option("--list", help="List the recipes and exit.")] = False,
    data_dir: options.DataDir = None,
    strict: options.Strict = False,
    force: Annotated[bool, typer.Option("--force", help="Train even if memory seems too small.")] = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Train a model by a recipe, on its data or your own.

    Ctrl-C saves and says how to go on. With --data a recipe trains on your own files instead: pairs-gru on pairs,
    polarity-bert on texts with labels, ewt-bert on tagged words, questions-bert on questions, shakespeare-gpt and
    imdb-bert on a running text.
    """
    from qkv.training import job
    from qkv.training.recipe import read_recipe, recipe_names

    if list_recipes:
        for name in recipe_names():
            result(name)
        return
    if recipe is None and resume is None:
        raise InputError("give the name of a recipe (qkv train --list prints them) or the path of a .toml file")
    changes = [*_own_files(recipe, data, valid, test), *(assignments or []), *(["data.strict=true"] if strict else [])]
    changes += [f"data.folder={dumps(str(data_dir))}"] if data_dir is not None else []
    if resume is not None:
        if out is not None:
            raise InputError("--out cannot be combined with --resume")
        if len(changes) > len(assignments or []):
            raise InputError(
                "a resumed run keeps its data: --data, --valid, --test, --data-dir and --strict cannot be combined "
                "with --resume"
            )
        _check_same_recipe(recipe, resume)
        done = job.resume(resume, device, assignments=assignments or [], force=force)
    else:
        assert recipe is not None
        wanted = read_recipe(recipe, changes)
        folder = out or Path("runs") / f"{Path(recipe).stem}-{wanted.seed}"
        done = job.begin(wanted, folder, device, force=force)
    _tell(done, recipe, json)


def _check_same_recipe(recipe: str | None, folder: Path) -> None:
    """A recipe may be named with --resume, but not another one than the run's: --set may have changed its numbers."""
    from qkv.training.recipe import read_recipe
    from qkv.training.run import Run

    if recipe is None:
        return
    named, own = read_recipe(recipe), Run.open(folder).recipe
    if (named.data.name, named.model["name"]) != (own.data.name, own.model["name"]):
        raise InputError(f"{folder} is not a run of {recipe}: it trains {own.model['name']} on {own.data.name}")
    one, other = asdict(named.model_config()), asdict(own.model_config())
    for key, value in one.items():
        if isinstance(value, str) and value != other[key]:
            raise InputError(f"{folder} is not a run of {recipe}: its model.{key} is {other[key]!r}, not {value!r}")


def _own_files(
    recipe: str | None, data: list[Path] | None, valid: list[Path] | None, test: list[Path] | None
) -> list[str]:
    """The files as assignments to the recipe, whose task says what they hold: data of a user's own are called so."""
    from qkv.data.registry import DATASETS
    from qkv.training.recipe import TASKS, Recipe, recipe_table

    given = {"train": data, "valid": valid, "test": test}
    named = [f"data.{split}={dumps([str(path) for path in paths])}" for split, paths in given.items() if paths]
    if not named or recipe is None:
        return named
    task = TASKS.get(str(recipe_table(recipe).get("task", Recipe.task)))
    if task is None:
        return named  # read_recipe says which tasks there are
    kind = next((kind for kind in task.kinds() if kind in DATASETS), None)
    if kind is None:
        own = "; of your own, from a folder: --set data.name=flickr8k --set data.folder=FOLDER (or coco)"
        raise InputError(
            f"--data: {task.title} is learned from a data set that qkv knows; see qkv data list"
            f"{own if task.learns_from == 'captions' else ''}"
        )
    return [*named, f'data.name="{kind}"']


def _tell(done: Any, recipe: str | None, json: bool) -> None:
    """Say what became of the run."""
    run, place = done.run, done.state
    if json:
        best = place.best and {"step": place.best.step, run.recipe.train.best_by: place.best.value}
        result_json(
            {"run": str(run.folder), "finished": place.finished, "step": place.step, "best": best,
             "seconds": round(place.seconds, 1)}
        )  # fmt: skip
    else:
        result(str(run.folder))
    if not place.finished:
        again = f"qkv train {recipe} --resume" if recipe else "qkv train --resume"
        say(f"stopped: saved {run.checkpoints[-1]}   go on with: {again} {shlex.quote(str(run.folder))}")
        raise typer.Exit(options.INTERRUPTED)
    if place.best is not None and not json:
        from qkv.training.recipe import TASKS

        folder = shlex.quote(str(run.folder))
        task = TASKS[run.recipe.task]
        parsed = " --file parsed.conllu" if run.recipe.model.get("tree", "none") != "none" else ""
        metric = task.metrics[run.recipe.train.best_by]
        best_value = f"best valid {metric.name} {metric.shown(place.best.value)}"
        say(
            f"done: {place.step:,} steps in {place.seconds:.0f} s, {best_value}   "
            f"now try: qkv evaluate {folder}, then qkv {task.cli_command} {folder}{parsed}"
        )
