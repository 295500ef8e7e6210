"""`qkv train`: train a model from a recipe."""

import shlex
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.console import info, result, result_json
from qkv.errors import InputError


def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="Recipe name, or path to a .toml file.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key, e.g. train.lr=3e-4 (with --resume: train keys only)."
        ),
    ] = None,
    data: options.Data = None,
    valid: Annotated[
        list[Path] | None, typer.Option("--valid", metavar="FILE", help="Validation data [held out from --data].")
    ] = None,
    test: Annotated[
        list[Path] | None, typer.Option("--test", metavar="FILE", help="Test data for `qkv evaluate`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Output directory [runs/RECIPE-SEED].")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Resume training from a run directory.")
    ] = None,
    list_recipes: Annotated[bool, typer.Option("--list", help="List recipes and exit.")] = False,
    data_dir: options.DataDir = None,
    strict: options.Strict = False,
    force: Annotated[
        bool, typer.Option("--force", help="Train even if the memory estimate exceeds the available memory.")
    ] = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Train a model from a recipe.

    Ctrl-C saves a checkpoint and prints the command that resumes training. With --data a recipe trains on your own
    files: pairs-gru on pairs, polarity-bert on labelled texts, ewt-bert on tagged words, questions-bert on questions,
    shakespeare-gpt and imdb-bert on plain text.
    """
    from qkv.training import job
    from qkv.training.recipe import read_recipe, recipe_names

    if list_recipes:
        for name in recipe_names():
            result(name)
        return
    if recipe is None and resume is None:
        raise InputError("missing recipe: pass a recipe name (see qkv train --list) or the path to a .toml file")
    changes = [
        *_data_overrides(recipe, data, valid, test),
        *(assignments or []),
        *(["data.strict=true"] if strict else []),
    ]
    changes += [f"data.folder={dumps(str(data_dir))}"] if data_dir is not None else []
    if resume is not None:
        if out is not None:
            raise InputError("--out cannot be combined with --resume")
        if len(changes) > len(assignments or []):
            raise InputError(
                "--data, --valid, --test, --data-dir and --strict cannot be combined with --resume: a resumed run "
                "keeps its data"
            )
        _check_same_recipe(recipe, resume)
        done = job.resume(resume, device, assignments=assignments or [], force=force)
    else:
        assert recipe is not None
        config = read_recipe(recipe, changes)
        folder = out or Path("runs") / f"{Path(recipe).stem}-{config.seed}"
        done = job.begin(config, folder, device, force=force)
    _report(done, recipe, json)


def _check_same_recipe(recipe: str | None, folder: Path) -> None:
    """Raise if `recipe`, given with --resume, is not the run's recipe; numbers may differ through --set."""
    from qkv.training.recipe import read_recipe
    from qkv.training.run import Run

    if recipe is None:
        return
    requested, actual = read_recipe(recipe), Run.open(folder).recipe
    names = [(entry.data.registered_name, entry.model.registered_name) for entry in (requested, actual)]
    if names[0] != names[1]:
        raise InputError(f"{folder} is not a run of {recipe}: it trains {names[1][1]} on {names[1][0]}")
    expected, config = requested.model.to_dict(), actual.model.to_dict()
    for key, value in expected.items():
        if isinstance(value, str) and value != config[key]:
            raise InputError(f"{folder} is not a run of {recipe}: its model.{key} is {config[key]!r}, not {value!r}")


def _data_overrides(
    recipe: str | None, data: list[Path] | None, valid: list[Path] | None, test: list[Path] | None
) -> list[str]:
    """Return recipe overrides that train on the user's files, read in the format of the recipe's task."""
    from qkv.datasets.user_files import user_dataset
    from qkv.training.recipe import recipe_table, task_of

    files = {"train": data, "valid": valid, "test": test}
    overrides = [f"data.{split}={dumps([str(path) for path in paths])}" for split, paths in files.items() if paths]
    if not overrides or recipe is None:
        return overrides
    task = task_of(recipe_table(recipe))
    if task is None:
        return overrides  # read_recipe reports the unknown task
    kind = next((dataset.kind for dataset in task.datasets if user_dataset(dataset.kind)), None)
    if kind is None:
        hint = "; for your own images use --set data.name=flickr8k --set data.folder=FOLDER (or coco)"
        raise InputError(
            f"--data is not supported for {task.title}: use a built-in dataset (see qkv data list)"
            f"{hint if task.datasets[0].kind == 'captions' else ''}"
        )
    return [*overrides, f'data.name="{kind}"']


def _report(done: Any, recipe: str | None, json: bool) -> None:
    """Print the outcome of the run and the next commands."""
    run, state = done.run, done.state
    if json:
        best = state.best and {"step": state.best.step, run.recipe.train.best_by: state.best.value}
        result_json(
            {"run": str(run.folder), "finished": state.finished, "step": state.step, "best": best,
             "seconds": round(state.seconds, 1)}
        )  # fmt: skip
    else:
        result(str(run.folder))
    if not state.finished:
        command = f"qkv train {recipe} --resume" if recipe else "qkv train --resume"
        info(f"stopped: saved {run.checkpoints[-1]}   resume with: {command} {shlex.quote(str(run.folder))}")
        raise typer.Exit(options.INTERRUPTED)
    if state.best is not None and not json:
        folder = shlex.quote(str(run.folder))
        task = run.recipe.task_class
        parsed = " --file parsed.conllu" if getattr(run.recipe.model, "tree", "none") != "none" else ""
        metric = task.metrics[run.recipe.train.best_by]
        best_value = f"best valid {metric.name} {metric.shown(state.best.value)}"
        info(
            f"done: {state.step:,} steps in {state.seconds:.0f} s, {best_value}   "
            f"next: qkv evaluate {folder}, then qkv {task.cli_command} {folder}{parsed}"
        )
