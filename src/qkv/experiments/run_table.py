"""Tables with one row per run, the keys in which the runs differ, their learning curves and commands."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from qkv.datasets.columns import Column
from qkv.datasets.user_files import user_dataset
from qkv.errors import QkvError
from qkv.experiments.curves import curve_of, run_curves, selecting_metric
from qkv.experiments.results import NOT_RECORDED, Record, read_records
from qkv.experiments.run_labels import search_label
from qkv.experiments.table import ResultRow, ResultTable, TableKey, environment, newest, result_table, table_key
from qkv.runtime.text import escape_controls
from qkv.training.recipe import Recipe
from qkv.training.run import read_log
from qkv.training.run_manifest import Manifest, flat
from qkv.visualize.curves import draw_curves, sparkline
from qkv.visualize.pages.comparison_page import Section

MAX_KEYS, MAX_COMMANDS = 5, 6  # shown on a terminal
UNLIMITED = 10_000  # width with which rich computes the width that a table needs
NOT_COMPARED = ("name", "overrides", "data.folder")
FILE_OPTIONS = {"data.train": "--data", "data.valid": "--valid", "data.test": "--test"}


@dataclass(frozen=True)
class RunRow:
    """A run, and its newest records with the same search settings on the same data."""

    folder: Path
    records: tuple[Record, ...]

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe of a training run; None for a folder that has results only."""
        try:
            return Manifest.read(self.folder).recipe
        except QkvError:
            return None

    @property
    def recorded(self) -> dict[str, Any]:
        """The recipe's name, overrides and seed, as recorded with the results."""
        record = self.records[0]
        changes = (change.split("=", 1) for change in record.changes)
        return {"recipe": record.recipe, **{key: value.strip('"') for key, value in changes}, "seed": record.seed}

    @property
    def settings(self) -> dict[str, Any]:
        """All keys of the recipe, or those that are recorded."""
        if self.recipe is None:
            return self.recorded
        keys = {key: value for key, value in flat(self.recipe.to_dict()).items() if key not in NOT_COMPARED}
        return {"recipe": Path(self.recipe.name).name, **keys}

    def values(self, split: str, column: Column) -> list[float]:
        return ResultRow("", self.records).values(split, column)

    @property
    def commands(self) -> str:
        """The commands that train and evaluate the run, on the user's files if it was trained on them."""
        record = self.records[0]
        recipe, changes = record.recipe, [*record.changes, f"seed={record.seed}"]
        if self.recipe is not None:
            recipe, changes = self.recipe.name, list(self.recipe.overrides)
        if record.command:
            return record.command
        splits = [f"--split {shlex.quote(split)}" for split in sorted({each.split for each in self.records})]
        beams = [f"--num-beams {record.beam}"] * (record.beam > 1)
        penalty = [f"--length-penalty {record.length_penalty:g}"] * (record.length_penalty != 1.0)
        evaluate = " ".join(["qkv evaluate RUN", *splits, *beams, *penalty])
        return f"{train_command(recipe, changes, self.recipe)} --output RUN && {evaluate}"


def train_command(recipe: str, changes: Sequence[str], resolved: Recipe | None) -> str:
    """Return the command that trains a recipe; the user's files are arguments of --data, --valid and --test."""
    words = ["qkv train", shlex.quote(recipe)]
    own = any(change.partition("=")[0] == "data.train" for change in changes)
    for change in changes:
        key, _, value = change.partition("=")
        if key in FILE_OPTIONS and own:
            paths = getattr(resolved.data, key.removeprefix("data."), None) if resolved is not None else None
            words += [f"{FILE_OPTIONS[key]} {shlex.quote(str(path))}" for path in paths or _paths(value)]
        elif key == "data.name" and own and user_dataset(value.strip('"')) is not None:
            continue  # follows from --data
        elif key not in NOT_RECORDED[1:]:
            words.append(f"--set {shlex.quote(change)}")
    return " ".join(words)


def _paths(value: str) -> list[str]:
    try:
        paths = json.loads(value)
    except ValueError:
        return [value]
    return [str(path) for path in paths] if isinstance(paths, list) else [str(paths)]


@dataclass(frozen=True)
class RunTable:
    """The runs that were evaluated on the same data, best first."""

    table: ResultTable
    rows: tuple[RunRow, ...]

    @property
    def keys(self) -> list[str]:
        """The keys in which the runs differ: of the recipes, if all runs have one.

        A key that the recipe of a fine-tuned run does not set has the value of its pretrained model or the default, and
        does not count as a difference.
        """
        every = [row.settings for row in self.rows]
        if any(row.recipe is None for row in self.rows):
            every = [row.recorded for row in self.rows]
        names = dict.fromkeys(key for settings in every for key in settings)
        tuned = [row.recipe is not None and row.recipe.init is not None for row in self.rows]
        return [key for key in names if len(_values(key, every, tuned)) > 1]

    def header(self, keys: Sequence[str]) -> list[str]:
        scores = [f"{split}: {column.title}" for split in self.table.splits for column in self.table.columns]
        search = ["search"] if self._searches else []
        return ["run", *keys, *search, "parameters", *scores, "minutes"]

    def cells(self, row: RunRow, keys: Sequence[str]) -> list[str]:
        """Return the cells of a run below the header."""
        settings = row.recorded if any(row.recipe is None for row in self.rows) else row.settings
        shown = ["" if (value := settings.get(key)) is None else str(value) for key in keys]
        scores = [
            f"{values[0]:.{column.digits}f}" if (values := row.values(split, column)) else ""
            for split in self.table.splits
            for column in self.table.columns
        ]
        search = [search_label(row.records[0])] if self._searches else []
        first = row.records[0]
        name = row.folder.name if first.finished else f"{row.folder.name} (not finished)"
        return [name, *shown, *search, f"{first.parameters / 1e6:.2f} M", *scores, f"{first.minutes:.1f}"]

    @property
    def _searches(self) -> bool:
        return len({search_label(row.records[0]) for row in self.rows}) > 1


def _values(key: str, every: Sequence[Mapping[str, Any]], tuned: Sequence[bool]) -> set[str]:
    """Return the different values of a key, without those that fine-tuned runs do not set."""
    return {
        repr(settings.get(key))
        for settings, is_tuned in zip(every, tuned, strict=True)
        if key in settings or not is_tuned
    }


def run_tables(runs: Sequence[Path]) -> list[RunTable]:
    """Return one table per dataset, with a row for each run and search settings."""
    groups: dict[TableKey, dict[tuple[Path, str], list[Record]]] = {}
    for run in dict.fromkeys(runs):
        for record in newest(read_records(run)):
            members = groups.setdefault(table_key(record), {})
            members.setdefault((run, search_label(record)), []).append(record)
    tables = []
    for key, members in sorted(groups.items()):
        table = result_table(key, [record for records in members.values() for record in records])
        rows = [RunRow(run, tuple(records)) for (run, _), records in members.items()]
        tables.append(RunTable(table, tuple(sorted(rows, key=lambda row: _rank(row, table)))))
    return tables


def _rank(row: RunRow, table: ResultTable) -> tuple[bool, float]:
    for split in table.splits:
        if table.columns and (values := row.values(split, table.columns[0])):
            return False, -values[0] if table.columns[0].higher_is_better else values[0]
    return True, 0.0


@dataclass(frozen=True)
class TerminalTable:
    """A table of runs for a terminal: as many of the keys that differ as fit into its width, at least one."""

    table: RunTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        keys = self.table.keys
        shown, unlimited = min(len(keys), MAX_KEYS), options.update_width(UNLIMITED)
        while shown > 1 and console.measure(self._grid(keys[:shown]), options=unlimited).maximum > options.max_width:
            shown -= 1
        yield self._grid(keys[:shown])
        yield Text("")
        if keys[shown:]:
            yield Text(f"other keys that differ: {', '.join(keys[shown:])}")
        if len(self.table.rows) <= MAX_COMMANDS:
            yield from (Text(escape_controls(f"{row.folder.name}: {row.commands}")) for row in self.table.rows)
        else:
            yield Text("Commands that reproduce each run, and learning curves: --output page.html")

    def _grid(self, keys: Sequence[str]) -> Table:
        title = Text(self.table.table.title)
        grid = Table(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left")
        curves = ["validation"] if any(self._curves.values()) else []
        for number, name in enumerate([*self.table.header(keys), *curves]):
            grid.add_column(Text(name), justify="right" if number else "left", overflow="fold")
        for row in self.table.rows:
            cells = [*self.table.cells(row, keys), *([self._curves[row.folder]] if curves else [])]
            grid.add_row(*(Text(escape_controls(cell)) for cell in cells))
        return grid

    @cached_property
    def _curves(self) -> dict[Path, str]:
        return {row.folder: _validation_curve(row.folder) for row in self.table.rows}


def terminal(tables: Sequence[RunTable]) -> Group:
    """Return the tables, to be printed with rich."""
    parts: list[RenderableType] = []
    for table in tables:
        parts += [TerminalTable(table), Text("")]
    return Group(*parts[:-1])


def _validation_curve(run: Path) -> str:
    """Return the curve of the validation metric as characters, with its last value; "" without a log."""
    key, metric = selecting_metric(run)
    values = curve_of(read_log(run), "valid", key).values
    return f"{sparkline(values)} {metric.shown(values[-1])}" if values else ""


def sections(tables: Sequence[RunTable]) -> list[Section]:
    """Return the tables for an HTML page, with learning curves and commands."""
    result = []
    for table in tables:
        keys = table.keys
        rows = [table.cells(row, keys) for row in table.rows]
        charts = run_curves([(row.folder.name, row.folder) for row in table.rows])
        figures = [(heading, draw_curves(lines, heading, scale)) for heading, scale, lines in charts]
        notes = sorted({environment(record) for row in table.rows for record in row.records})
        commands = [(row.folder.name, row.commands) for row in table.rows]
        result.append(Section(table.table.title, table.header(keys), rows, notes, figures, commands))
    return result
