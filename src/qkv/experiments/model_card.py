"""The model card of a packaged model, written from its recipe and its recorded evaluations."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from qkv.datasets.columns import Column
from qkv.experiments.results import Record
from qkv.hub.conversion import Converted
from qkv.hub.tensors import WEIGHTS
from qkv.registry import lookup
from qkv.runtime.files import sha256
from qkv.training.recipe import Recipe, recipe_info

USES = {  # arguments of the command that runs a model, by command
    "generate": "PROMPT",
    "transcribe": "RECORDING.wav",
    "caption": "IMAGE",
    "view": "",  # of an example of its own
}


def result_columns(recipe: Recipe) -> tuple[Column, ...]:
    """Return the metrics that are reported for a recipe."""
    return recipe.task_class.columns or recipe.data.columns


def model_card(
    name: str,
    recipe: Recipe,
    converted: Converted,
    records: Sequence[Record],
    original: Sequence[Record],
    notes: Sequence[str],
    folder: Path,
) -> str:
    """Return the card of a model in Markdown; `original` are the evaluations of the run before it was packaged."""
    info, task = recipe_info(recipe.name), recipe.task_class
    command = task.cli_command or "view"
    lines = [
        f"# {name}",
        "",
        f"{info.purpose}.",
        "",
        f"    qkv {command} {name} {USES.get(command, 'TEXT')}".rstrip(),
        "",
    ]
    lines += [f"{note}\n" for note in notes]
    lines += [
        "| | |",
        "| --- | --- |",
        f"| task | {task.title} |",
        f"| model | {recipe.model.registered_name}, {converted.parameters:,} parameters |",
        f"| weights | {converted.dtype}, {converted.size / 1e6:.1f} MB |",
        f"| data | {recipe.data.registered_name}: {recipe.data.summary} |",
        f"| license of the data and the weights | {recipe.data.license} |",
        f"| training | {_training(records[0])} |",
        f"| SHA-256 of {WEIGHTS} | {sha256(folder / WEIGHTS)} |",
        f"| SHA-256 of the data | {records[0].data_hash} |",
        "",
        "## Evaluation",
        "",
        "These weights:",
        "",
        *_table(records, result_columns(recipe)),
        "",
        *(f"- {line}" for line in dict.fromkeys(_details(name, record) for record in records)),
        *dict.fromkeys(_signatures(records, result_columns(recipe))),
    ]
    if original:
        lines += ["", "The run before its weights were converted:", "", *_table(original, result_columns(recipe))]
    return "\n".join(lines) + "\n"


def _training(record: Record) -> str:
    changes = "".join(f" --set {change}" for change in record.changes)
    device = f" on {record.trained_on}" if record.trained_on else ""
    stopped = "" if record.finished else " (stopped before the last epoch)"
    return (
        f"`qkv train {record.recipe}{changes} --set seed={record.seed}`: {record.steps:,} steps{stopped}, "
        f"{record.minutes:.1f} minutes{device} in {record.precision}, torch {record.trained_torch}, "
        f"commit {record.trained_commit[:12]} (source {record.trained_source_hash[:12]})"
    )


def _table(records: Sequence[Record], columns: Sequence[Column]) -> Iterator[str]:
    """Yield a table of the metrics of each record."""
    columns = [column for column in columns if any(record.score(column.metric) for record in records)]
    yield f"| split | size | search | {' | '.join(column.title for column in columns)} |"
    yield f"| --- | ---: | --- |{' ---: |' * len(columns)}"
    for record in records:
        cells = [_cell(record, column) for column in columns]
        search = f"beam {record.beam}" if record.beam > 1 else "greedy" if lookup("task", record.task).searches else ""
        yield f"| {record.split} | {record.size:,} | {search} | {' | '.join(cells)} |"


def _cell(record: Record, column: Column) -> str:
    measure = record.score(column.metric)
    return "" if measure is None or measure.value is None else f"{measure.value * column.unit:.{column.digits}f}"


def _details(name: str, record: Record) -> str:
    search = f" --num-beams {record.beam}" if record.beam > 1 else ""
    return (
        f"`qkv evaluate {name} --split {record.split}{search}` on {record.device}, torch {record.torch}, "
        f"qkv {record.version}, commit {record.commit[:12]} (source {record.source_hash[:12]}), {record.date[:10]}"
    )


def _signatures(records: Sequence[Record], columns: Sequence[Column]) -> Iterator[str]:
    for record in records:
        for column in columns:
            if (measure := record.score(column.metric)) is not None and measure.signature:
                yield f"- {column.title}: `{measure.signature}`"
