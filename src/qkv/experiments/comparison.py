"""`qkv.compare`: tables of the results of runs, or of the variants of a recipe."""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from qkv.errors import InputError
from qkv.experiments import run_table, sweep_report
from qkv.experiments.results import RESULTS
from qkv.experiments.sweep import Evaluate, Sweep, SweepResult
from qkv.hub.model_folder import model_name
from qkv.registry import names_keywords
from qkv.runtime.cluster import WorkerOptions
from qkv.runtime.files import RUNS
from qkv.training.start import assignments_of
from qkv.visualize.notebook.html import fragment, paragraph, strong, table, text
from qkv.visualize.pages.comparison_page import save_comparison

SEEDS = 3  # default number of seeds of a sweep
WIDTH = 160  # characters of a printed table


@dataclass(frozen=True, repr=False)
class RunComparison:
    """The results of runs, one table per dataset."""

    runs: tuple[Path, ...]

    @property
    def tables(self) -> list[run_table.RunTable]:
        """One table per dataset, the best run first."""
        return run_table.run_tables(self.runs)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of all tables as dicts, for example for pandas."""
        return [
            dict(zip(part.header(part.keys), part.cells(row, part.keys), strict=True))
            for part in self.tables
            for row in part.rows
        ]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a self-contained HTML page with the tables, learning curves and commands."""
        facts = {"Runs": ", ".join(map(str, self.runs))}
        return save_comparison(path, "Comparison of runs", run_table.sections(self.tables), facts)

    def __repr__(self) -> str:
        return _printed(run_table.terminal(self.tables))

    def _repr_html_(self) -> str:
        parts = []
        for part in self.tables:
            rows = [part.cells(row, part.keys) for row in part.rows]
            parts += [paragraph(strong(part.table.title)), table(part.header(part.keys), rows)]
        return fragment(*parts)


@dataclass(frozen=True, repr=False)
class SweepComparison:
    """The results of the variants of a recipe, with confidence intervals and tests."""

    result: SweepResult
    metric: str
    folder: Path

    def __repr__(self) -> str:
        return _printed(sweep_report.terminal(self.result, [self.metric]))

    def _repr_html_(self) -> str:
        headers, rows = sweep_report.cells(self.result, self.metric)
        failed = [paragraph(text(f"{one.trial.name}: {one.error}")) for one in self.result.failures]
        note = paragraph(escape(sweep_report.METHOD), quiet=True)
        return fragment(paragraph(strong(sweep_report.title(self.result))), table(headers, rows), note, *failed)


@names_keywords
def compare(
    *runs: str | os.PathLike[str],
    vary: Mapping[str, Iterable[Any]] | None = None,
    seeds: int = SEEDS,
    overrides: Mapping[str, Any] | None = None,
    metric: str | None = None,
    split: str = "valid",
    output: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    device: str = "auto",
) -> RunComparison | SweepComparison:
    """Compare evaluated runs, or train and compare variants of a recipe.

    With `vary`, every combination of values is trained with every seed; the same call continues an interrupted sweep.

        qkv.compare("runs/demo", "runs/other")
        qkv.compare("dates-gru", vary={"model.cell": ["gru", "lstm"]}, seeds=3, overrides={"train.epochs": 5})

    Args:
        *runs: Folders of runs, or with `vary` a single recipe.
        vary: Values to try for each key of the recipe.
        seeds: Number of seeds of each variant.
        overrides: Keys of the recipe that all variants have.
        metric: Metric of the table of variants; by default the main metric of the task.
        split: Split on which the variants are evaluated.
        output: Folder of the sweep; by default runs/sweep-RECIPE.
        workers: Number of runs trained at a time; by default one for each core, or for each GPU.
        device: Device to train on: "auto", "cpu", "cuda", "cuda:N" or "mps".

    Returns:
        The tables of results, which print and draw themselves.
    """
    paths = [model_name(run) for run in _flattened(runs)]
    if vary is None:
        if not paths:
            raise InputError("pass the runs to compare, or a recipe and vary={key: values}")
        folders = tuple(dict.fromkeys(map(Path, paths)))
        missing = [folder for folder in folders if folder.is_dir() and not (folder / RESULTS).is_file()]
        if missing and len(missing) == len(folders):
            raise InputError(f"{missing[0]}: has no results: run qkv.evaluate({str(missing[0])!r}) first")
        if missing:
            skipped = f"skipped {len(missing)} run(s) without results of qkv.evaluate: {', '.join(map(str, missing))}"
            warnings.warn(skipped, stacklevel=3)
            folders = tuple(folder for folder in folders if folder not in missing)
        comparison = RunComparison(folders)
        comparison.tables  # noqa: B018  (reads the results, which may be malformed)
        return comparison
    if len(paths) != 1:
        raise InputError(f"vary requires a single recipe, not {len(paths)}")
    factors = {key: [_value(value) for value in values] for key, values in vary.items()}
    sweep = Sweep(paths[0], factors, range(seeds), assignments_of(overrides or {}), Evaluate(split))
    folder = Path(output) if output is not None else RUNS / f"sweep-{Path(paths[0]).stem}"
    result = sweep.run(folder, WorkerOptions(workers), device)
    if not result.metrics:
        raise InputError(f"all {len(result.outcomes)} runs failed: {result.failures[0].error}")
    if metric is not None and metric not in result.metrics:
        raise InputError(f"metric {metric!r} was not measured (known: {', '.join(result.metrics)})")
    return SweepComparison(result, metric or next(iter(result.metrics)), folder)


def _flattened(runs: Sequence[Any]) -> list[Any]:
    """Return the runs, which may also be given as one list."""
    return list(runs[0]) if len(runs) == 1 and isinstance(runs[0], list | tuple) else list(runs)


def _value(value: Any) -> str:
    """Return a value of a factor as it is written in --vary: strings without quotes."""
    return value if isinstance(value, str) else assignments_of({"value": value})[0].partition("=")[2]


def _printed(renderable: RenderableType) -> str:
    console = Console(file=StringIO(), width=WIDTH, force_terminal=False, force_jupyter=False, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().rstrip("\n")
