"""Options that several commands share, so that they read alike everywhere."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.runtime.files import check_output_file


def output_file(path: Path | None) -> Path | None:
    """Refuse a link, a device or a folder as an output file before the command does any work."""
    if path is not None:
        check_output_file(path)
    return path


MOST = 2**30  # of whatever an option counts, where nothing else bounds it
INTERRUPTED = 130  # the exit code of a command that was stopped by Ctrl-C

Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON, for machines.")]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A training run, or a saved model's folder.")]
Strict = Annotated[bool, typer.Option("--strict", help="Make an empty line or a heading an error.")]
Beam = Annotated[int, typer.Option("--beam", min=1, max=1000, help="How many hypotheses to follow; 1 is greedy.")]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Your own data: pairs, or texts with labels, in one file of two columns (TSV, *.csv or *.jsonl), or the "
        "option twice with a file for each side, of the sources also *.conllu; sentences with tags in CoNLL columns or "
        "*.conllu; questions in SQuAD's JSON.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Where the files of data sets are looked for first [then QKV_DATA, then the cache, then a download].",
    ),
]
