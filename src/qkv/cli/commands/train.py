"""`qkv train`: train a model from a recipe."""

import shlex
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.console import info, note, result, result_json
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.training.job import DryRun, Job

AUTO = Path("auto")  # --resume auto
STRICT = "data.strict=true"

RecipeName = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE", autocompletion=options.complete_recipes, help="Recipe name, or path to a .toml file."
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=options.complete_keys,
        help="Override a key, e.g. train.lr=3e-4 (with --resume: train keys only); repeatable.",
    ),
]
Valid = Annotated[
    list[Path] | None, typer.Option("--valid", metavar="FILE", help="Validation data [held out from --data].")
]
Test = Annotated[list[Path] | None, typer.Option("--test", metavar="FILE", help="Test data for `qkv evaluate`.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="FOLDER", help="Output directory [runs/RECIPE-N, N from the seed on]."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Delete the run in the output directory first, if there is one.")
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        autocompletion=options.complete_runs,
        help="Resume a run; train a finished one longer with --set train.epochs=N. "
        "auto: the newest unfinished run of RECIPE; if all are finished, a new run starts, except with --output.",
    ),
]
StrictResume = Annotated[
    bool,
    typer.Option(
        "--strict-resume",
        help="Fail if torch, the device, its threads or the number of processes have changed since the checkpoint.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show config, data, model size and estimated time; write nothing.")
]
Profile = Annotated[
    bool,
    typer.Option("--profile", help="Profile a few steps: writes a trace and a table to RUN/profile."),
]
Force = Annotated[bool, typer.Option("--force", help="Train even if the memory estimate exceeds the available memory.")]
Log = Annotated[
    str,
    typer.Option(
        "--log",
        metavar="NAMES",
        autocompletion=options.complete("logger"),
        help="Loggers besides RUN/log.jsonl: tensorboard, mlflow, wandb, several (tensorboard,mlflow) or none.",
    ),
]
Samples = Annotated[
    int, typer.Option("--samples", min=0, max=100, metavar="N", help="Outputs to show at each validation.")
]
Chart = Annotated[
    bool | None,
    typer.Option("--chart/--no-chart", help="Chart of the training loss [on a terminal of 30 lines or more]."),
]


def train(
    recipe: RecipeName = None,
    assignments: Assignments = None,
    data: options.Data = None,
    column: options.Columns = None,
    valid: Valid = None,
    test: Test = None,
    output: Output = None,
    overwrite: Overwrite = False,
    resume: Resume = None,
    strict_resume: StrictResume = False,
    dry_run: DryRunOption = False,
    data_dir: options.DataDir = None,
    strict: options.Strict = False,
    force: Force = False,
    profile: Profile = False,
    log: Log = "tensorboard",
    samples: Samples = 3,
    chart: Chart = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Train a model from a recipe.

    `qkv recipes` lists the recipes. Ctrl-C saves a checkpoint and prints the command that resumes training. With --data
    a recipe trains on your own files: pairs-gru on pairs, polarity-bert on labeled texts, ewt-lstm on tagged words,
    questions-bert on questions, shakespeare-gpt and imdb-bert on plain text, images-vit on a folder of images,
    captions-attend on captions, speech-las on recordings. `qkv data check FILE` shows what training would read.
    """
    from qkv.training import job
    from qkv.training.distributed import process_group
    from qkv.training.recipe import read_recipe
    from qkv.training.run import Run
    from qkv.training.start import data_overrides, train_recipe

    watch = partial(_watching, samples, chart, log, profile)
    if resume is not None:
        own_data = bool(data or column or valid or test or data_dir is not None or strict)
        _check_resume(resume, output=output, overwrite=overwrite, dry_run=dry_run, own_data=own_data)
    if resume is not None and resume != AUTO:
        _check_same_recipe(recipe, resume)
        finished = Run.open(resume).finished
        with process_group(device) as device:
            done = job.resume(resume, device, assignments or [], force=force, strict=strict_resume, **watch())
        if finished and done.main and not any("train.epochs" in assignment for assignment in assignments or []):
            note(f"{resume} was finished: train longer with --set train.epochs=N")
        _report(done, json)
        return
    if recipe is None:
        raise InputError("missing recipe: pass a recipe name (see qkv recipes) or the path to a .toml file")
    folder = [] if data_dir is None else [f"data.folder={dumps(str(data_dir))}"]
    config = read_recipe(
        recipe,
        [
            *data_overrides(recipe, data, valid, test, options.parse_columns(column)),
            *(assignments or []),
            *strict * [STRICT],
            *folder,
        ],
    )
    if dry_run:
        _report_dry_run(job.dry_run(config, output, device, force=force, overwrite=overwrite), json)
        return
    done = train_recipe(
        config, output, device, watch,
        overwrite=overwrite, resume_unfinished=resume == AUTO, force=force, strict=strict_resume,
    )  # fmt: skip
    _report(done, json)


def _watching(samples: int, chart: bool | None, log: str, profile: bool) -> dict[str, Any]:
    """Return the display, the loggers and the profile; only the first process of a group prints."""
    from rich.console import Console

    from qkv.training.display import Display
    from qkv.training.distributed import is_main

    display = Display(Console(stderr=True, quiet=not is_main()), samples=samples, chart=chart)
    loggers = [name.strip() for name in log.split(",") if name.strip() != "none"]
    return {"display": display, "loggers": loggers, "profile": profile}


def _check_resume(resume: Path, *, output: Path | None, overwrite: bool, dry_run: bool, own_data: bool) -> None:
    """Raise if an option cannot be combined with --resume."""
    for option, value in {"--output": output, "--overwrite": overwrite, "--dry-run": dry_run}.items():
        if value and (option != "--output" or resume != AUTO):
            raise InputError(f"{option} cannot be combined with --resume")
    if resume != AUTO and own_data:
        raise InputError(
            "--data, --column, --valid, --test, --data-dir and --strict cannot be combined with --resume: a resumed "
            "run keeps its data"
        )


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


def _report_dry_run(plan: "DryRun", json: bool) -> None:
    """Print what a recipe would train as comments, and the resolved recipe as TOML below them."""
    from dataclasses import asdict

    from qkv.config import write_toml

    if json:
        result_json(asdict(plan))
        return
    sizes = ", ".join(f"{size:,} {split}" for split, size in plan.data.items())
    epochs = plan.recipe["train"]["epochs"]
    lines = {
        "data": f"{plan.recipe['data']['name']}: {sizes} {plan.unit}" if sizes else plan.recipe["data"]["name"],
        "tokenizer": plan.tokenizer,
        "model": f"{plan.recipe['model']['name']}: {plan.parameters:,} parameters",
        "training": f"{epochs:,} epoch(s) of {plan.steps_per_epoch:,} steps: {plan.steps:,} steps",
        "time": f"about {_duration(plan.seconds)} on {plan.device} (estimated from a few steps, without validation)",
    }
    result("\n".join(f"# {name:9}  {text}" for name, text in lines.items() if text))
    result(f"\n{write_toml(plan.recipe)}")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _report(done: "Job", json: bool) -> None:
    """Print the outcome of the run and the next commands; of several processes, the first does."""
    run, state = done.run, done.state
    if not done.main:
        if not state.finished:
            raise typer.Exit(options.INTERRUPTED)
        return
    if json:
        best = state.best and {"step": state.best.step, run.recipe.train.best_by: state.best.value}
        result_json(
            {"run": str(run.folder), "finished": state.finished, "step": state.step, "best": best,
             "seconds": round(state.seconds, 1)}
        )  # fmt: skip
    else:
        result(str(run.folder))
    if not state.finished:
        folder = shlex.quote(str(run.folder))
        info(f"stopped: saved {run.checkpoints[-1]}   resume with: qkv train --resume {folder}")
        raise typer.Exit(options.INTERRUPTED)
    if state.best is not None and not json:
        folder = shlex.quote(str(run.folder))
        task = run.recipe.task_class
        parsed = " --input parsed.conllu" if getattr(run.recipe.model, "tree", "none") != "none" else ""
        metric = task.metrics[run.recipe.train.best_by]
        best_value = f"best valid {metric.name} {metric.shown(state.best.value)}"
        use = f", then qkv {task.cli_command} {folder}{parsed}" if task.cli_command else ""
        info(f"done: {state.step:,} steps in {state.seconds:.0f} s, {best_value}   next: qkv evaluate {folder}{use}")
