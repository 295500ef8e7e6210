"""`qkv data check`: what training would read from files of the user, and what is probably a mistake."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options
from qkv.cli.console import result, result_json
from qkv.errors import InputError
from qkv.registry import lookup, nearest
from qkv.runtime.text import message_line, printable

if TYPE_CHECKING:
    from qkv.datasets.inspection import Lengths
    from qkv.training.data_check import DataReport

MAX_LABELS = 20  # shown
WIDTH = 100  # characters of a cell of an example

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE", help="File or folder; or a source and a target file of pairs.")
]
TaskName = Annotated[
    str | None,
    typer.Option("--task", metavar="TASK", autocompletion=options.complete("task"), help="Task [guessed from FILE]."),
]
CheckedRecipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="RECIPE",
        autocompletion=options.complete_recipes,
        help="Recipe to train with, whose model and tokenizer are used [one that fits the data].",
    ),
]
Valid = Annotated[list[Path] | None, typer.Option("--valid", metavar="FILE", help="Validation data.")]
Test = Annotated[list[Path] | None, typer.Option("--test", metavar="FILE", help="Test data.")]
Count = Annotated[int, typer.Option("--count", min=0, max=1000, help="Number of examples to show.")]


def check(
    files: Files,
    task: TaskName = None,
    recipe: CheckedRecipe = None,
    column: options.Columns = None,
    valid: Valid = None,
    test: Test = None,
    assignments: options.Assignments = None,
    count: Count = 3,
    json: options.Json = False,
) -> None:
    """Check your files and show what training would read.

    Prints the number of examples of each split, their lengths, labels and a few examples, and warns about probable
    mistakes: a header read as an example, swapped columns, labels that are texts, duplicates in several splits, texts
    that are too long, wrong encodings, too few examples for the model. Nothing is written.
    """
    from qkv.training.data_check import check_data
    from qkv.training.recipe import read_recipe
    from qkv.training.start import data_overrides

    if recipe is not None and task is not None:
        raise InputError("--task cannot be combined with --recipe")
    for path in files:
        if not path.exists() and not path.is_symlink():
            raise InputError(f"{path}: no such file")
    guessed = recipe is None and task is None
    name = recipe or _recipe_for(files, task, options.parse_columns(column))
    overrides = data_overrides(name, files, valid, test, options.parse_columns(column))
    config = read_recipe(name, [*overrides, *(assignments or [])])
    report = check_data(config, count)
    settings = [*(assignments or []), *(["init=FOLDER"] if config.missing_init() else [])]
    command = _train_command(name, files, valid, test, column, settings)
    if json:
        result_json({"recipe": name, **asdict(report), "command": command})
    else:
        _print_report(" and ".join(map(str, files)), report, name, command, guessed=guessed)


def _recipe_for(files: list[Path], task: str | None, columns: dict[str, str]) -> str:
    """Return a recipe that trains on such files, of a task if that is given."""
    from qkv.datasets.detect import infer_kind
    from qkv.datasets.user_files import user_dataset, user_datasets

    if task is None:
        return user_datasets()[infer_kind(files, columns)].recipe
    kinds = [dataset.kind for dataset in lookup("task", task).datasets]
    reader = next(filter(None, map(user_dataset, kinds)), None)
    if reader is None:
        names = {entry.recipe: None for entry in user_datasets().values()}
        raise InputError(f"--task {task}: cannot be trained on your own files{nearest(task, names)}")
    return reader.recipe


def _train_command(
    recipe: str,
    files: list[Path],
    valid: list[Path] | None,
    test: list[Path] | None,
    column: list[str] | None,
    assignments: list[str] | None,
) -> str:
    words = ["qkv", "train", recipe]
    for option, values in (
        ("--data", files), ("--valid", valid), ("--test", test), ("--column", column), ("--set", assignments),
    ):  # fmt: skip
        words += [word for value in values or () for word in (option, str(value))]
    return shlex.join(words)


def _print_report(name: str, report: "DataReport", recipe: str, command: str, *, guessed: bool) -> None:
    from qkv.datasets.user_files import user_datasets

    description = user_datasets()[report.kind].description
    hint = "; use --task for another kind" if guessed else ""
    sizes = ", ".join(f"{size:,} {split}" for split, size in report.splits.items())
    lines = {
        "kind": f"{description}{hint}",
        "splits": f"{sizes} {report.unit}",
        **{column: _describe(lengths) for column, lengths in report.lengths.items()},
        "labels": _labels(report.labels),
        "model": f"{recipe}: {report.parameters:,} parameters{f', {report.tokenizer}' if report.tokenizer else ''}",
    }
    width = max(map(len, lines))
    result(printable(name))
    result("\n".join(f"  {key:{width}}  {text}" for key, text in lines.items() if text))
    for example in report.examples:
        cells = (value if isinstance(value, str) else " ".join(value) for value in example.values() if value)
        result("  example: " + " | ".join(printable(" ".join(cell.split()), WIDTH) for cell in cells))
    for note in report.notes:
        result(message_line(f"note: {note}"))
    for warning in report.warnings:
        result(message_line(f"warning: {warning}"))
    result(f"train with: {command}")


def _describe(lengths: "Lengths") -> str:
    return f"{lengths.shortest:.4g} to {lengths.longest:.4g} {lengths.unit}, median {lengths.median:.4g}"


def _labels(labels: dict[str, int]) -> str:
    shown = [f"{printable(label, 30)} {count:,}" for label, count in list(labels.items())[:MAX_LABELS]]
    more = [f"and {len(labels) - MAX_LABELS:,} more"] if len(labels) > MAX_LABELS else []
    return ", ".join([*shown, *more])
