"""Markdown tables of results: one row per recipe, with its seeds and folds."""

import hashlib
import html
import re
import shlex
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote

from qkv.datasets.columns import PAIRS, Column
from qkv.experiments.results import Record
from qkv.experiments.run_labels import fold_of, published_changes, row_label
from qkv.registry import registered
from qkv.runtime.text import escape_controls

UNFINISHED = "training not finished"
HASH_DIGITS = 12
TableKey = tuple[str, str, str, str]  # data, languages, task, data hash
# Characters that are special in Markdown, other than underscores inside a word and brackets not followed by a link.
SPECIAL = re.compile(r"[\\`*|#~]|\](?=[(\[])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


@dataclass(frozen=True)
class ResultRow:
    """The newest record of each seed, fold and split of one recipe."""

    label: str
    records: tuple[Record, ...]

    @property
    def seeds(self) -> list[int]:
        return sorted({record.seed for record in self.records})

    @property
    def folds(self) -> list[int]:
        return sorted({fold for record in self.records if (fold := fold_of(record)) is not None})

    def on_split(self, split: str) -> list[Record]:
        return [record for record in self.records if record.split == split]

    def values(self, split: str, column: Column) -> list[float]:
        """Return the value of a column for each seed and fold."""
        if column.needs_case and any(record.lowercase for record in self.records):
            return []
        metrics = [record.score(column.metric) for record in self.on_split(split)]
        return [metric.value * column.unit for metric in metrics if metric is not None and metric.value is not None]


@dataclass(frozen=True)
class ResultTable:
    """Rows that can be compared: they have the same data, hash and folds."""

    data: str
    languages: str
    task: str  # a task with its own columns, such as pretraining, else ""
    data_hash: str
    splits: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[ResultRow, ...]

    @property
    def title(self) -> str:
        source, _, target = self.languages.partition("-")
        name = f"{self.data} {source} to {target}" if target else self.data
        return f"{name}, {self.task.replace('_', ' ')}" if self.task else name


def tables(records: Iterable[Record]) -> list[ResultTable]:
    """Group records into tables, with the best row of each first."""
    kept = newest(records)
    over_folds = _over_folds(kept)

    def key(record: Record) -> TableKey:
        return over_folds.get(_row_key(record)) or table_key(record)

    return [result_table(group, list(members)) for group, members in groupby(sorted(kept, key=key), key=key)]


def newest(records: Iterable[Record]) -> list[Record]:
    """Keep the newest record for each recipe, seed, search, data and split."""
    ordered = sorted(records, key=lambda record: record.date)
    return list(
        {(table_key(record), row_label(record), record.seed, record.split): record for record in ordered}.values()
    )


def markdown(tables: Sequence[ResultTable], command: str, figure: str | None = None) -> str:
    """Return the tables as a Markdown page, with the commands that reproduce each row."""
    parts = [
        "# Results",
        f"Written by {code(command)} from the records of the runs: do not edit it, run that again.",
        "Where there are several seeds or folds, a cell gives their mean, and in brackets the lowest and the highest.",
    ]
    titles = [table.title for table in tables]
    for table in tables:
        parts += _section(table, same_title=titles.count(table.title) > 1)
    if figure is not None:
        parts += ["## BLEU by the length of the source", f"![BLEU by the length of the source]({quote(figure)})"]
    return "\n\n".join(parts) + "\n"


def table_key(record: Record) -> TableKey:
    """Return what the records of a table have in common."""
    return record.data, record.languages, record.task if _task_columns(record.task) else "", record.data_hash


def _task_columns(name: str) -> tuple[Column, ...]:
    """Return the columns of a task that has its own tables."""
    task = registered("task").get(name)
    return () if task is None else task.columns


def _row_key(record: Record) -> tuple[TableKey, str]:
    """Return what the records of a row have in common, whatever their folds."""
    data, languages, task, _ = table_key(record)
    return (data, languages, task, ""), row_label(record)


def _over_folds(records: Iterable[Record]) -> dict[tuple[TableKey, str], TableKey]:
    """Return the table keys of rows with several folds; rows with the same folds of the same data share a table.

    The data hash of such a table is the hash of the fold hashes. Rows are left out if a fold has records on different
    data, or if the seeds have different folds.
    """
    folds: dict[tuple[TableKey, str], dict[int, set[tuple[int, str]]]] = {}
    for record in records:
        if (fold := fold_of(record)) is not None:
            folds.setdefault(_row_key(record), {}).setdefault(record.seed, set()).add((fold, record.data_hash))
    keys = {}
    for row, by_seed in folds.items():
        first, *others = by_seed.values()
        if 1 < len(first) == len({fold for fold, _ in first}) and all(
            folds_of_seed == first for folds_of_seed in others
        ):
            keys[row] = (*row[0][:3], hashlib.sha256(repr(sorted(first)).encode()).hexdigest())
    return keys


def result_table(key: TableKey, records: list[Record]) -> ResultTable:
    """Return the table of records with the same key, with the best row first."""
    data, languages, task, data_hash = key
    dataset = registered("dataset").get(data)
    columns = _task_columns(task) or (PAIRS if dataset is None else dataset.columns)
    splits = tuple(sorted({record.split for record in records}))
    labels = sorted({row_label(record) for record in records})
    rows = [ResultRow(label, tuple(record for record in records if row_label(record) == label)) for label in labels]

    def rank(row: ResultRow) -> tuple[bool, float]:
        values = next((row.values(split, columns[0]) for split in splits if row.values(split, columns[0])), [])
        mean = statistics.fmean(values) if values else 0.0
        return not values, -mean if columns[0].higher_is_better else mean

    shown = tuple(column for column in columns if any(row.values(split, column) for row in rows for split in splits))
    return ResultTable(data, languages, task, data_hash, splits, shown, tuple(sorted(rows, key=rank)))


def _section(table: ResultTable, *, same_title: bool) -> list[str]:
    title = plain(table.title)
    parts = [f"## {title}"]
    if same_title:
        parts.append(
            f"There is more than one table of {title}, for the runs had different data. These had the data with "
            f"the hash {plain(table.data_hash[:HASH_DIGITS])}: compare rows inside a table only."
        )
    parts.append(_grid(table))
    dataset = registered("dataset").get(table.data)
    if dataset is not None and table.languages in dataset.remarks:
        parts.append(dataset.remarks[table.languages])
    folds = table.rows[0].folds
    data = f"SHA-256 of the hashes of {len(folds)} folds" if len(folds) > 1 else "SHA-256"
    tested = [f"- tested on fold {', '.join(map(str, folds))}"] if folds else []
    parts.append("\n".join([f"- data: {data} {plain(table.data_hash)}", *tested, *_signatures(table)]))
    reproduction = [
        line
        for row in table.rows
        for line in (f"- {plain(row.label)}", *(f"  - {step}" for step in reproduction_steps(row.records)))
    ]
    parts.append("How each row was made:\n\n" + "\n".join(reproduction))
    return parts


def _grid(table: ResultTable) -> str:
    headers = [f"{split}: {column.title}" for split in table.splits for column in table.columns]
    lines = [["recipe", "parameters", "seeds", *headers, "minutes of training"]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    for row in table.rows:
        cells = [spread(row.values(split, column), column.digits) for split in table.splits for column in table.columns]
        minutes = spread(list({(record.seed, fold_of(record)): record.minutes for record in row.records}.values()), 1)
        runs = f"{len(row.seeds)} x {len(row.folds)} folds" if len(row.folds) > 1 else str(len(row.seeds))
        parameters = " / ".join(sorted({f"{record.parameters / 1e6:.2f} M" for record in row.records}))
        lines.append([f"{row.label}{_caveats(row)}", parameters, runs, *cells, minutes])
    return "\n".join(f"| {' | '.join(map(plain, line))} |" for line in lines)


def _caveats(row: ResultRow) -> str:
    """Return notes on unfinished training and skipped pairs."""
    notes = []
    if not all(record.finished for record in row.records):
        notes.append(UNFINISHED)
    if left_out := max(record.left_out for record in row.records):
        notes.append(f"{left_out} too long and left out")
    return f" ({', '.join(notes)})" if notes else ""


def spread(values: Sequence[float], digits: int) -> str:
    """Format the mean, and the range of several values."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _signatures(table: ResultTable) -> list[str]:
    lines = []
    for column in table.columns:
        measured = (record.score(column.metric) for row in table.rows for record in row.records)
        signatures = {metric.signature for metric in measured if metric is not None and metric.signature}
        lines += [f"- {column.title}: {code(signature)}" for signature in sorted(signatures)]
    return lines


def reproduction_steps(records: Sequence[Record]) -> list[str]:
    """Return Markdown lines with the commands that reproduce the runs of a row, then their environments."""
    commands: dict[str, list[str]] = {}
    for record in sorted(records, key=lambda record: (record.seed, fold_of(record) or 0)):
        splits = sorted({other.split for other in records if other.seed == record.seed})
        steps = code(record.command) if record.command else _commands(record, splits)
        seeds = commands.setdefault(steps, [])
        if str(record.seed) not in seeds:
            seeds.append(str(record.seed))
    lines = [f"{steps}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" for steps, seeds in commands.items()]
    return [*lines, *sorted({plain(environment(record)) for record in records})]


def _commands(record: Record, splits: Sequence[str]) -> str:
    """Return the commands that train and evaluate a run, with SEED for its seed and RUN for its folder."""
    changes = [f"--set {shlex.quote(change)}" for change in published_changes(record)]
    train = " ".join(["qkv train", shlex.quote(record.recipe), *changes, "--set seed=SEED"])
    options = [f"--split {shlex.quote(split)}" for split in splits]
    options += [f"--num-beams {record.beam}"] if record.beam > 1 else []
    options += [f"--length-penalty {record.length_penalty:g}"] if record.length_penalty != 1.0 else []
    return f"{code(train)}, then {code(' '.join(['qkv evaluate RUN', *options]))}"


def environment(record: Record) -> str:
    """Describe device, code version and date of training, and of evaluation if they differ."""
    version = _version(record.torch, record.commit, record.source_hash, f"qkv {record.version}")
    evaluated = f"evaluated on {record.device}, {version}"
    if not record.trained_on:
        return f"{evaluated}, {record.date[:10]}"
    trained_by = _version(record.trained_torch, record.trained_commit, record.trained_source_hash, "no commit")
    graphs = " with CUDA graphs" if record.graphs else ""
    trained = f"trained on {record.trained_on} in {record.precision}{graphs}, {trained_by}"
    evaluation = (record.device, record.torch, record.commit, record.source_hash)
    training = (record.trained_on, record.trained_torch, record.trained_commit, record.trained_source_hash)
    return f"{trained}{'' if evaluation == training else f'; {evaluated}'}, {record.date[:10]}"


def _version(torch: str, commit: str, source_hash: str, without_commit: str) -> str:
    version = f"commit {commit[:HASH_DIGITS]}" if commit else without_commit
    return f"torch {torch}, {version} (source {source_hash[:HASH_DIGITS]})"


def plain(text: str) -> str:
    """Return Markdown that renders as the given text: it cannot become HTML, a link, a table cell or a new line."""
    return html.escape(SPECIAL.sub(r"\\\g<0>", escape_controls(" ".join(text.splitlines()))), quote=False)


def code(text: str) -> str:
    """Return text as inline code; as an HTML element if it contains backticks or HTML."""
    if re.search(r"[`<>&]", text) or not text.strip() or escape_controls(text) != text:
        return f"<code>{plain(text)}</code>"
    return f"`{text}`"
