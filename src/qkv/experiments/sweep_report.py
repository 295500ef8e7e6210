"""The table of a sweep for the terminal, in Markdown, JSON and HTML, and its plot."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from qkv.experiments.curves import run_curves
from qkv.experiments.results import RESULTS, read_records
from qkv.experiments.sweep import SweepResult
from qkv.experiments.sweep_stats import Row
from qkv.experiments.table import code, environment, plain
from qkv.metrics import Metric
from qkv.runtime.files import write_atomically
from qkv.runtime.text import escape_controls
from qkv.visualize.curves import PointRow, draw_curves, draw_points
from qkv.visualize.pages.comparison_page import Section, save_comparison
from qkv.visualize.plotting import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHOD = (
    "Each mean has its 95 % confidence interval (Student's t over the seeds). p is that of Welch's two-sided test "
    "against the first row, adjusted for the number of comparisons by Holm's method; it needs at least two seeds."
)
FEW = "With fewer than two seeds there are no intervals and tests: pass --seeds 3 or more."


def write_report(result: SweepResult, metrics: Sequence[str], folder: Path, command: str) -> list[Path]:
    """Write table.md, table.json, table.html and plot.png; return their paths."""
    plot = save_figure(draw_sweep(result, metrics), folder / "plot.png", dpi=200, pad_inches=0.12)
    page, data = folder / "table.md", folder / "table.json"
    write_atomically(page, markdown(result, metrics, folder, command, plot.name).encode())
    write_atomically(data, (json.dumps(to_json(result), ensure_ascii=False, indent=1) + "\n").encode())
    html = save_comparison(folder / "table.html", title(result), _sections(result, metrics, folder))
    return [page, data, html, plot]


def title(result: SweepResult) -> str:
    """Return the title of the report."""
    return f"Sweep of {' and '.join(dict.fromkeys(Path(o.trial.recipe.name).name for o in result.outcomes))}"


def terminal(result: SweepResult, metrics: Sequence[str]) -> Group:
    """Return the tables, to be printed with rich."""
    tables = []
    for name in metrics:
        headers, rows = cells(result, name)
        table = Table(box=None, header_style="bold", pad_edge=False)
        for number, header in enumerate(headers):
            table.add_column(Text(header), justify="right" if number else "left")
        for row in rows:
            table.add_row(*(Text(escape_controls(cell)) for cell in row))
        tables.append(table)
    return Group(*tables, *(Text(escape_controls(line)) for line in _failures(result)))


def markdown(result: SweepResult, metrics: Sequence[str], folder: Path, command: str, plot: str) -> str:
    """Return the report as a Markdown page."""
    parts = [f"# {plain(title(result))}", f"Written by {code(command)}.", METHOD]
    for name in metrics:
        headers, rows = cells(result, name)
        lines = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
        parts.append("\n".join(f"| {' | '.join(map(plain, line))} |" for line in lines))
    parts += ["\n".join(f"- {plain(line)}" for line in [*_failures(result), *_environments(result, folder)])]
    parts.append(f"![Scores of each seed, their mean and its 95 % confidence interval]({plot})")
    parts.append("How the last run was trained: " + code(_command(result)))
    return "\n\n".join(filter(None, parts)) + "\n"


def to_json(result: SweepResult) -> dict[str, Any]:
    """Return all rows of all metrics, with the scores of each seed, and the failed runs."""
    return {
        "metrics": {name: [asdict(row) for row in result.rows(name)] for name in result.metrics},
        "runs": [
            {"name": outcome.trial.name, "settings": dict(outcome.trial.settings), "seed": outcome.seed,
             "scores": dict(outcome.scores), "minutes": outcome.minutes, "error": outcome.error}
            for outcome in result.outcomes
        ],
    }  # fmt: skip


def cells(result: SweepResult, name: str) -> tuple[list[str], list[list[str]]]:
    """Return the headers and the rows of the table of a metric."""
    metric = result.metrics[name]
    headers = ["", "seeds", metric.name, "95 % interval", "difference", "95 % interval", "p", "parameters", "minutes"]
    return headers, [_cells(row, metric) for row in result.rows(name)]


def _cells(row: Row, metric: Metric) -> list[str]:
    shown, gap = metric.shown, "" if row.difference is None else metric.shown(row.difference)
    return [
        row.label,
        str(len(row.values)),
        "failed" if row.mean is None else shown(row.mean),
        "" if row.interval is None else " to ".join(map(shown, row.interval)),
        gap if not gap or gap.startswith("-") else f"+{gap}",
        "" if row.difference_interval is None else " to ".join(map(shown, row.difference_interval)),
        "" if row.p is None else "< 0.0001" if row.p < 1e-4 else f"{row.p:.4f}",
        f"{row.parameters / 1e6:.2f} M",
        f"{row.minutes:.1f}",
    ]


def draw_sweep(result: SweepResult, metrics: Sequence[str]) -> "Figure":
    """Plot the score of each seed, the mean of each combination and its interval."""
    panels = []
    for name in metrics:
        metric = result.metrics[name]
        scale = 100 if metric.percent else 1
        rows = [
            PointRow(
                row.label,
                tuple(scale * value for value in row.values.values()),
                None if row.mean is None else scale * row.mean,
                None if row.interval is None else (scale * row.interval.low, scale * row.interval.high),
            )
            for row in result.rows(name)
        ]
        panels.append((f"{metric.name}, %" if metric.percent else metric.name, rows))
    return draw_points(panels)


def _sections(result: SweepResult, metrics: Sequence[str], folder: Path) -> list[Section]:
    sections: list[Section] = []
    for name in metrics:
        headers, rows = cells(result, name)
        figure = ("Scores of each seed, their mean and its 95 % confidence interval", draw_sweep(result, [name]))
        sections.append(Section(result.metrics[name].name, headers, rows, [METHOD] * (not sections), [figure]))
    runs = [(outcome.trial.label, folder / "runs" / outcome.trial.name) for outcome in result.outcomes]
    curves = [(heading, draw_curves(lines, heading, scale)) for heading, scale, lines in run_curves(runs)]
    notes = [*_failures(result), *_environments(result, folder)]
    command = ("How the last run was trained", _command(result))
    return [*sections, Section("Learning curves", notes=notes, figures=curves, commands=[command])]


def _failures(result: SweepResult) -> list[str]:
    few = [FEW] if max(len(row.values) for row in result.rows(next(iter(result.metrics), ""))) < 2 else []
    return [*few, *(f"{outcome.trial.name} failed: {outcome.error}" for outcome in result.failures)]


def _environments(result: SweepResult, folder: Path) -> list[str]:
    """Describe where the runs were trained and evaluated; several lines if they differ."""
    runs = [folder / "runs" / outcome.trial.name for outcome in result.outcomes]
    return sorted({environment(read_records(run)[-1]) for run in runs if (run / RESULTS).is_file()})


def _command(result: SweepResult) -> str:
    """Return the command that trains the last run."""
    trial = result.outcomes[-1].trial
    changes = [f"--set {shlex.quote(assignment)}" for assignment in trial.assignments]
    return " ".join(["qkv train", shlex.quote(trial.recipe.name), *changes])
