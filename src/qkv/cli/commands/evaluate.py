"""`qkv evaluate`: score a trained model."""

import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.commands.train import parse_columns
from qkv.cli.console import info, note, progress_bar, result, result_json
from qkv.errors import InputError
from qkv.runtime.files import write_atomically
from qkv.runtime.text import printable

if TYPE_CHECKING:
    from qkv.datasets.dataset import Dataset
    from qkv.generation import GenerationConfig
    from qkv.tasks.base.task import Evaluation, Task
    from qkv.training.run import Run

ALL_TESTS = "all-tests"


Split = Annotated[
    list[str] | None,
    typer.Option("--split", metavar="SPLIT", help="Split to evaluate, or all-tests; repeatable [test]."),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, max=options.MAX_COUNT, help="Evaluate only the first N pairs.")
]
Output = Annotated[Path | None, options.output_file("--output", "FILE", "Write the outputs, one per line.")]
NoRecord = Annotated[bool, typer.Option("--no-record", help="Do not append the result to RUN/results.jsonl.")]


def evaluate(
    run: options.Folder,
    split: Split = None,
    data: options.Data = None,
    column: options.Columns = None,
    limit: Limit = None,
    num_beams: options.NumBeams = 1,
    length_penalty: options.LengthPenalty = 1.0,
    output: Output = None,
    no_record: NoRecord = False,
    strict: options.Strict = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Evaluate a model on its test set or on your files.

    Reports the metrics of the task, e.g. BLEU and chrF (sacrebleu) for translation. Results on a whole split are
    appended to RUN/results.jsonl for `qkv compare`.
    """
    from qkv.experiments.results import record_evaluation
    from qkv.generation import GenerationConfig
    from qkv.hub import load
    from qkv.tasks.base.train_config import TrainConfig

    search = GenerationConfig(num_beams=num_beams, length_penalty=length_penalty)
    if data and split is not None:
        raise InputError("--split cannot be combined with --data")
    own, loaded = (find_run(run), None) if data else open_run(run)
    task_class = _task_class(run, own, search, limit, output)
    model = load(run, device=device)
    if loaded is None:
        names = [" and ".join(map(str, data or []))]
        columns = parse_columns(column)
        loaded = read_files(run, own, task_class, model, data or [], names[0], columns, strict=strict)
    else:
        names = select_splits(run, split, task_class.splits(loaded))
    if limit is not None:
        loaded = replace(loaded, splits={name: loaded.splits[name][:limit] for name in names})
    if output is not None and len(names) > 1:
        raise InputError(f"--output requires a single split, not {len(names)}: {', '.join(names)}")
    settings = (
        (own.recipe.task, own.recipe.train, own.recipe.seed) if own else (task_class.config_class(), TrainConfig(), 0)
    )
    task = task_class.for_evaluation(loaded, model, *settings)
    # Results on part of a split or for a single checkpoint must not be recorded as results of the run.
    complete = own is not None and not data and run == own.folder and limit is None and not own.is_packaged
    for name in names:
        for message in task.notes_on(loaded, name):
            note(message)
        evaluation = evaluate_split(task, model, loaded, name, search)
        _print_evaluation(run, name, task, evaluation, json=json)
        if output is not None:
            lines = (" ".join(text.splitlines()) for text in evaluation.outputs)
            write_atomically(output, "".join(f"{line}\n" for line in lines).encode())
        if own is not None and complete and not no_record:
            record = record_evaluation(own, model, loaded, name, evaluation, search)
            suffix = "" if record.finished else f" (training is not finished: step {record.steps:,})"
            info(f"recorded in {own.folder / 'results.jsonl'}{suffix}")


def _task_class(
    run: Path, own: "Run | None", search: "GenerationConfig", limit: int | None, output: Path | None
) -> type["Task"]:
    """Return the task of a model; raise if it does not generate and thus does not support the options of generation."""
    from qkv.generation import GenerationConfig
    from qkv.hub.model_folder import ModelFolder, locate
    from qkv.registry import lookup

    if own is None:
        name = "transcribe" if ModelFolder(locate(run)).reads_speech else "translate"
    task_class: type[Task] = lookup("task", name) if own is None else own.recipe.task_class
    if not task_class.searches and (search, limit, output) != (GenerationConfig(), None, None):
        raise InputError(
            f"{run}: --num-beams, --length-penalty, --limit and --output require a translation model, but this is a "
            f"run of {task_class.title}"
        )
    return task_class


def evaluate_split(
    task: "Task", model: Any, data: "Dataset[Any]", split: str, search: "GenerationConfig", label: str = "evaluating"
) -> "Evaluation":
    """Evaluate a model on a split, with a progress bar."""
    began = time.monotonic()
    with progress_bar(label, len(data.splits[split]) if task.searches else 0) as progress:
        arguments = {"search": search, "progress": progress} if task.searches else {}
        evaluation = task.evaluate(model, data, split, **arguments)
    return replace(evaluation, seconds=time.monotonic() - began)


def _print_evaluation(run: Path, split: str, task: "Task", evaluation: "Evaluation", *, json: bool) -> None:
    if evaluation.skipped:
        note(f"skipped {evaluation.skipped} pair(s) longer than the model allows")
    if json:
        summary = {"run": str(run), "split": split, "size": evaluation.size, **evaluation.scores}
        result_json({**summary, "signatures": evaluation.signatures, "seconds": evaluation.seconds})
        return
    info(f"{run}: {evaluation.size:,} {evaluation.unit} of {split}")
    result(table(task, evaluation))


def table(task: "Task", evaluation: "Evaluation") -> str:
    """Format an evaluation as a table."""
    metrics = {name: task.metric(name) for name in evaluation.scores}
    width = max(28, *(len(metric.name) for metric in metrics.values()))
    rows = []
    for name, metric in metrics.items():
        value, signature = metric.shown(evaluation.scores[name]), evaluation.signatures.get(name, "")
        rows.append(f"{metric.name:{width}}  {value:>10}   {signature}".rstrip())
    rows.append(f"{'speed':{width}}  {evaluation.size / evaluation.seconds:10.0f}   {evaluation.unit}/s")
    if evaluation.mistakes:
        rows += ["", f"first {len(evaluation.mistakes)} mistake(s):"]
        mistakes = ([printable(repr(text)) for text in mistake] for mistake in evaluation.mistakes)
        rows += [f"  {source}: {text} should be {reference}" for source, text, reference in mistakes]
    return "\n".join(rows)


def open_run(run: Path) -> tuple["Run", "Dataset[Any]"]:
    """Return the training run of a run or checkpoint directory, and its data."""
    training_run = find_run(run)
    if training_run is None:
        runs = sorted(path.parent.name for path in run.glob("*/manifest.json"))
        hint = f"pass one of the runs in it, e.g. {run / runs[0]}" if runs else "pass --data"
        raise InputError(f"{run}: not a training run, so it has no dataset: {hint}")
    return training_run, training_run.data()


def find_run(run: Path) -> "Run | None":
    """Return the training run of a run or checkpoint directory; None for other model folders."""
    from qkv.hub.model_folder import named_folder
    from qkv.hub.pretrained import unknown_model
    from qkv.training.run import Run
    from qkv.training.run_manifest import MANIFEST

    run = named_folder(run)
    if not run.exists():
        raise InputError(unknown_model(str(run)))
    folder = next((folder for folder in (run, run.parent) if (folder / MANIFEST).exists()), None)
    return None if folder is None else Run.open(folder)


def read_files(
    run: Path,
    own: "Run | None",
    task: type["Task"],
    model: Any,
    files: list[Path],
    name: str,
    columns: dict[str, str],
    *,
    strict: bool,
) -> "Dataset[Any]":
    """Load the user's files in the format of a task and of its model, as a split called `name`."""
    from qkv.datasets.user_files import user_dataset

    reader = user_dataset(task.datasets[0].kind)
    if reader is None or len(task.datasets) > 1 or task.datasets[0].kind == "text":
        hint = "; pass your own test text to qkv train (--test)" if task.datasets[0].kind == "text" else ""
        raise InputError(f"{run}: --data is not supported for {task.title}{hint}")
    column = getattr(own.recipe.data, "column", "upos") if own is not None else "upos"
    columns = columns or getattr(own and own.recipe.data, "column_names", {})
    sizes = task.reader_options(model.config)
    loaded = reader.read_files(files, name, strict=strict, column=column, column_names=columns, **sizes)
    for message in loaded.notes:
        note(message)
    return loaded


def select_splits(run: Path, requested: list[str] | None, splits: list[str]) -> list[str]:
    """Return the requested splits without duplicates; default: the first test set, else the validation set."""
    tests = [name for name in splits if name.startswith("test")]
    if requested is None:
        return tests[:1] or ["valid"]
    if ALL_TESTS in requested and not tests:
        raise InputError(f"{run}: no test set (available: {', '.join(splits)})")
    names = list(chain.from_iterable(tests if name == ALL_TESTS else [name] for name in requested))
    for name in names:
        if name not in splits:
            raise InputError(f"{run}: no {name} split (available: {', '.join(splits)})")
    return list(dict.fromkeys(names))
