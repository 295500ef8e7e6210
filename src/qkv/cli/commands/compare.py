"""`qkv compare`: tables of evaluation results."""

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.commands.sweep import data_folder, parse_factors, run_sweep
from qkv.cli.commands.train import Force
from qkv.cli.console import command_line, info, note, on_terminal, result, result_json, result_rich, results_to
from qkv.errors import InputError
from qkv.runtime.cluster import WorkerOptions
from qkv.runtime.files import check_output_file

SEEDS = 3  # default number of seeds of a sweep

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        autocompletion=options.complete_runs,
        help="Training runs scored by `qkv evaluate`; with --vary, one recipe.",
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="KEY=VALUE,...",
        help="Train the recipe with each of these values, e.g. model.score.name=dot,additive; repeatable: all "
        "combinations. The key `recipe` varies the recipe itself.",
    ),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, max=1000, metavar="N", help=f"Runs per combination [{SEEDS}].")
]
MetricNames = Annotated[
    list[str] | None,
    typer.Option("--metric", metavar="NAME", help="Metric of the table of a sweep; repeatable [train.best_by]."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", help="Train N runs at a time, which share the CPUs [one per CPU, or one per GPU]."
    ),
]
Ray = Annotated[
    bool, typer.Option("--ray", help="Train with Ray, on this machine or a cluster (pip install 'qkv[ray]').")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write the table to a file (*.md or *.html) instead of stdout. Folder of a sweep [runs/sweep-RECIPE].",
    ),
]


def compare(
    runs: Runs,
    vary: Vary = None,
    seeds: Seeds = None,
    assignments: options.Assignments = None,
    metric: MetricNames = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            metavar="SPLIT",
            autocompletion=options.complete_splits,
            help="Split to evaluate in a sweep [valid]; with --by-length, the split to plot [the first of all runs].",
        ),
    ] = None,
    output: Output = None,
    by_length: Annotated[
        Path | None, options.output_file("--by-length", "FIGURE", "Plot BLEU by source length (.png or .svg).")
    ] = None,
    workers: Workers = None,
    ray: Ray = False,
    ray_address: options.RayAddress = None,
    data_dir: options.DataDir = None,
    force: Force = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Compare runs, or variants of a recipe.

    `qkv compare RUN...` shows evaluation results in one table per dataset. It reads only RUN/results.jsonl of each run;
    weights are not needed. The Markdown page merges the seeds of a recipe into one row.

    `qkv compare RECIPE --vary KEY=VALUE,...` trains every combination of values with every seed, and writes a table
    with confidence intervals, a significance test and a plot. The same command continues an interrupted sweep.
    """
    if vary:
        from qkv.experiments.sweep import Evaluate, Sweep

        if len(runs) > 1 or by_length is not None:
            raise InputError("--vary requires a single recipe, and cannot be combined with --by-length")
        overrides = [*(assignments or []), *data_folder(data_dir)]
        sweep = Sweep(str(runs[0]), parse_factors(vary), range(seeds or SEEDS), overrides, Evaluate(split or "valid"))
        run_sweep(sweep, metric, output, WorkerOptions(workers, ray, ray_address), device, force=force, json=json)
        return
    given = {
        "--seeds": seeds, "--set": assignments, "--metric": metric, "--workers": workers, "--ray": ray,
        "--ray-address": ray_address, "--data-dir": data_dir, "--force": force, "--device": device != "auto",
    }  # fmt: skip
    if missing := [option for option, value in given.items() if value]:
        raise InputError(f"{missing[0]} requires --vary: pass a recipe and the values to compare")
    if output is not None:
        check_output_file(output)
    _compare_runs(list(dict.fromkeys(runs)), output, by_length, split, json=json)


def _compare_runs(
    runs: list[Path], output: Path | None, by_length: Path | None, split: str | None, *, json: bool
) -> None:
    """Print or write the tables of runs."""
    from qkv.experiments import run_table
    from qkv.experiments.results import RESULTS, read_records
    from qkv.experiments.table import markdown, newest, tables
    from qkv.visualize.pages.comparison_page import save_comparison

    unscored = [run for run in runs if (run / "recipe.toml").is_file() and not (run / RESULTS).is_file()]
    if unscored and len(unscored) < len(runs):
        note(f"skipped {len(unscored)} run(s) without results of qkv evaluate: {', '.join(map(str, unscored))}")
        runs = [run for run in runs if run not in unscored]
    records = [record for run in runs for record in read_records(run)]
    if older := len(records) - len(newest(records)):
        note(f"skipped {older} older record(s): only the newest per recipe, seed, search and split counts")
    if by_length is not None:
        from qkv.experiments import lengths
        from qkv.visualize.length_chart import save_by_length

        info(f"figure: {save_by_length(lengths.by_length(records, split), by_length)}")
    elif split is not None:
        raise InputError("--split requires --by-length")
    if not json and output is not None and output.suffix.lower() == ".html":
        facts = {"Runs": ", ".join(map(str, runs)), "Command": command_line()}
        sections = run_table.sections(run_table.run_tables(runs))
        result(str(save_comparison(output, "Comparison of runs", sections, facts)))
        return
    if not json and on_terminal() and output is None:
        result_rich(run_table.terminal(run_table.run_tables(runs)))
        return
    with results_to(output):
        if json:
            for record in records:
                result_json(asdict(record))
            return
        folder = Path() if output is None else output.parent
        figure = None if by_length is None else os.path.relpath(by_length, folder)
        result(markdown(tables(records), _command(runs), figure).removesuffix("\n"))


def _command(runs: list[Path]) -> str:
    """Return the command line; the complete contents of one directory are written as DIR/*."""
    arguments = sys.argv[1:]
    parents = {run.parent for run in runs}
    if len(runs) > 1 and len(parents) == 1:
        (parent,) = parents
        if {run.name for run in runs} == {path.name for path in parent.iterdir() if not path.name.startswith(".")}:
            star = shlex.quote(str(parent)) + "/*"
            is_run = [Path(word) in runs for word in arguments]
            first = is_run.index(True)
            others = [word for word, run in zip(arguments, is_run, strict=True) if not run]
            before, after = shlex.join(others[:first]), shlex.join(others[first:])
            return " ".join(filter(None, ("qkv", before, star, after)))
    return shlex.join(["qkv", *arguments])
