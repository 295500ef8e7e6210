"""Options shared by several commands."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.runtime.files import check_output_file


def check_output(path: Path | None) -> Path | None:
    """Reject a symlink, device or directory as an output file before the command starts."""
    if path is not None:
        check_output_file(path)
    return path


MAX_COUNT = 2**30  # upper bound of count options that have no other limit
INTERRUPTED = 130  # exit code after Ctrl-C

Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="Device: auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="Training run or saved model.")]
Strict = Annotated[bool, typer.Option("--strict", help="Treat empty lines and header rows as errors.")]
Beam = Annotated[int, typer.Option("--beam", min=1, max=1000, help="Beam size; 1 is greedy decoding.")]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Your own data. Pairs or labelled texts: one two-column file (TSV, *.csv or *.jsonl), or the option twice "
        "with one file per side (sources may be *.conllu). Tagged sentences: CoNLL columns or *.conllu. Questions: "
        "SQuAD JSON.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Directory searched first for dataset files [then QKV_DATA, the cache, a download].",
    ),
]
