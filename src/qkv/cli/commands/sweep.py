"""The sweeps of `qkv compare RECIPE --vary KEY=VALUES`."""

import shlex
import signal
import sys
from json import dumps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from qkv.cli.console import info, note, on_terminal, result, result_json, result_rich
from qkv.errors import InputError
from qkv.registry import nearest
from qkv.runtime.cluster import WorkerOptions
from qkv.runtime.files import RUNS

if TYPE_CHECKING:
    from qkv.experiments.sweep import Sweep, SweepResult

OPENING, CLOSING, QUOTES = "[{", "]}", "\"'"


def run_sweep(
    sweep: "Sweep",
    metrics: list[str] | None,
    output: Path | None,
    workers: WorkerOptions,
    device: str,
    *,
    force: bool,
    json: bool,
) -> None:
    """Run a sweep, print its table and write its report; exit code 1 if a run failed."""
    folder = output or RUNS / f"sweep-{Path(sweep.recipe).stem}"
    task = sweep.trials[0].recipe.task_class
    known = {**task.metrics, **task.test_metrics}
    for name in metrics or []:
        if name not in known:
            raise InputError(f"--metric {name}: not a metric of {task.title}{nearest(name, known)}")
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        measured = sweep.run(folder, workers, device, force=force)
    except KeyboardInterrupt:
        info("interrupted: the same command continues the sweep")
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
    if measured.metrics:
        _report(measured, metrics, folder, json=json)
    for outcome in measured.failures:
        info(f"error: {outcome.trial.name}: {outcome.error} (see {folder / 'output' / outcome.trial.name}.txt)")
    if measured.failures:
        info(f"{len(measured.failures)} of {len(measured.outcomes)} runs failed: the same command tries them again")
        raise typer.Exit(1)


def parse_factors(assignments: list[str]) -> dict[str, list[str]]:
    """Return the values of each key of `KEY=VALUE,VALUE,...` assignments."""
    factors: dict[str, list[str]] = {}
    for assignment in assignments:
        key, equals, values = assignment.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise InputError(f"--vary {assignment}: expected KEY=VALUE,VALUE,...")
        if key.strip() in factors:
            raise InputError(f"--vary {key.strip()}: is given twice; list all values in one option")
        factors[key.strip()] = split_values(values)
    return factors


def split_values(text: str) -> list[str]:
    """Split at the commas that are not inside brackets, braces or quotes."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES:
            quote = character
        else:
            depth += (character in OPENING) - (character in CLOSING)
        if character == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += character
    return [value.strip() for value in values]


def data_folder(data_dir: Path | None) -> list[str]:
    """Return the assignment for --data-dir."""
    return [] if data_dir is None else [f"data.folder={dumps(str(data_dir))}"]


def _report(measured: "SweepResult", metrics: list[str] | None, folder: Path, *, json: bool) -> None:
    from qkv.experiments.sweep_report import markdown, terminal, to_json, write_report

    for name in metrics or []:
        if name not in measured.metrics:
            raise InputError(f"--metric {name}: was not measured{nearest(name, measured.metrics)}")
    chosen = metrics or [next(iter(measured.metrics))]
    command = shlex.join(["qkv", *sys.argv[1:]])
    try:
        paths = write_report(measured, chosen, folder, command)
    except InputError as error:
        note(f"no plot and no page: {error}")
        paths = []
    if json:
        result_json(to_json(measured))
    elif on_terminal():
        result_rich(terminal(measured, chosen))
    else:
        result(markdown(measured, chosen, folder, command, "plot.png").removesuffix("\n"))
    if paths:
        info(f"wrote {', '.join(map(str, paths))}")


def interrupt(number: int, frame: FrameType | None) -> None:
    """Signal handler that interrupts the command as Ctrl-C does."""
    raise KeyboardInterrupt
