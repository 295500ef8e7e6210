"""`qkv compare`: tables of evaluation results."""

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.console import info, note, result, result_json, results_to
from qkv.errors import InputError


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Training runs scored by `qkv evaluate`.")],
    output: options.Output = None,
    by_length: Annotated[
        Path | None, options.output_file("--by-length", "FIGURE", "Plot BLEU by source length (.png or .svg).")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="SPLIT", help="Split to plot [the first that all runs have].")
    ] = None,
    json: options.Json = False,
) -> None:
    """Compare runs in one table per dataset, in Markdown.

    Reads only RUN/results.jsonl of each run; weights are not needed. The seeds of a recipe are merged into one row.
    """
    from qkv.experiments.results import RESULTS, read_records
    from qkv.experiments.table import markdown, newest, tables

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
