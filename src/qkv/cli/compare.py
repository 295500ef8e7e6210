"""`qkv compare`: many runs in one table."""

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.talk import note, result, result_json, say
from qkv.errors import InputError


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Training runs that `qkv evaluate` scored.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            callback=options.output_file,
            metavar="PAGE.md",
            help="Write the page there instead of printing it.",
        ),
    ] = None,
    by_length: Annotated[
        Path | None,
        typer.Option(
            "--by-length",
            callback=options.output_file,
            metavar="FIGURE",
            help="Also draw BLEU by source length (.png or .svg).",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="SPLIT", help="The split to draw [the first that all runs have].")
    ] = None,
    json: options.Json = False,
) -> None:
    """Compare runs: a page of tables, one for each data set.

    Reads RUN/results.jsonl of every run, and nothing else: weights are not needed. Seeds of one recipe make one row.
    """
    from qkv.evaluation.record import RESULTS, read_records
    from qkv.evaluation.table import markdown, newest, tables

    unscored = [run for run in runs if (run / "recipe.toml").is_file() and not (run / RESULTS).is_file()]
    if unscored and len(unscored) < len(runs):
        note(f"left out {len(unscored)} run(s) that qkv evaluate has not scored: {', '.join(map(str, unscored))}")
        runs = [run for run in runs if run not in unscored]
    records = [record for run in runs for record in read_records(run)]
    if older := len(records) - len(newest(records)):
        note(f"left out {older} older record(s): the newest of a recipe, seed, search and split counts")
    if by_length is not None:
        from qkv.evaluation import lengths
        from qkv.view.chart import save_by_length

        say(f"figure: {save_by_length(lengths.batch_by_length(records, split), by_length)}")
    elif split is not None:
        raise InputError("--split names what --by-length draws: the tables have every split")
    if json:
        for record in records:
            result_json(asdict(record))
        return
    figure = None if by_length is None else os.path.relpath(by_length, out.parent if out is not None else Path())
    page = markdown(tables(records), _command(runs), figure)
    if out is None:
        result(page.removesuffix("\n"))
        return
    from qkv.runtime.files import write_atomically

    write_atomically(out, page.encode())
    result(str(out))


def _command(runs: list[Path]) -> str:
    """What was typed; where the runs are all that their folder has, with a star, which a shell had made them of."""
    typed = sys.argv[1:]
    parents = {run.parent for run in runs}
    if len(runs) > 1 and len(parents) == 1:
        (parent,) = parents
        if {run.name for run in runs} == {path.name for path in parent.iterdir() if not path.name.startswith(".")}:
            star = shlex.quote(str(parent)) + "/*"
            named = [Path(word) in runs for word in typed]
            first = named.index(True)
            others = [word for word, one in zip(typed, named, strict=True) if not one]
            before, after = shlex.join(others[:first]), shlex.join(others[first:])
            return " ".join(filter(None, ("qkv", before, star, after)))
    return shlex.join(["qkv", *typed])
