"""The record of what was measured: one JSON object a line, in results.jsonl beside the run's recipe.

A record says everything that a table needs, so that runs made elsewhere can be compared without their weights.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from qkv.config import build, require
from qkv.errors import InputError
from qkv.metrics import Score
from qkv.runtime.files import name_output_errors, open_for_append, open_regular, read_regular

RESULTS = "results.jsonl"
LARGEST = 64 * 2**20  # bytes that are read at all


@dataclass(frozen=True)
class Measure:
    """One number; None where there was nothing to measure."""

    name: str
    value: float | None
    signature: str = ""


@dataclass(frozen=True)
class Bucket:
    """The pairs whose sources have between `least` and `most` words (no limit: None), and their tokenised BLEU."""

    least: int
    most: int | None
    pairs: int
    bleu: float


@dataclass(frozen=True)
class Record:
    """One evaluation of one run on one split."""

    recipe: str  # the name of the recipe that comes nearest,
    changes: tuple[str, ...]  # and what was set otherwise, the seed apart: "model.score=dot"
    seed: int
    task: str
    model: str
    parameters: int
    steps: int
    minutes: float  # of training
    finished: bool  # whether training came to the end of the recipe
    data: str
    languages: str  # "en-de", or "" where the data set has no choice
    lowercase: bool
    data_hash: str
    split: str
    size: int  # pairs, words or characters that were scored
    left_out: int  # pairs that were too long for the model
    beam: int
    length_penalty: float
    metrics: tuple[Measure, ...]
    trained_on: str  # the device, or several one after another; "" where the run does not say
    device: str  # of the evaluation, as all up to `seconds`
    torch: str
    version: str
    commit: str  # "" outside a checkout
    source_hash: str
    date: str
    seconds: float
    by_length: tuple[Bucket, ...] = ()
    # What follows is of training; records of before it was kept have none of it.
    precision: str = ""
    graphs: bool = False  # whether the steps were captured in CUDA graphs
    trained_torch: str = ""
    trained_commit: str = ""
    trained_source_hash: str = ""
    shipped: bool = True  # whether `recipe` comes with qkv; else it is but the name of the run's folder
    command: str = ""  # that measured what is no run of qkv, such as a baseline; `recipe` is its name

    def __post_init__(self) -> None:
        names = [measure.name for measure in self.metrics]
        require(len(set(names)) == len(names), "metrics names a metric twice")

    def score(self, name: str) -> Measure | None:
        """The metric of that name, where it was measured."""
        return next((one for one in self.metrics if one.name == name and one.value is not None), None)


def measures(scores: Mapping[str, Score]) -> tuple[Measure, ...]:
    """Scores as a record keeps them: JSON has no word for a number that is none but null."""
    return tuple(
        Measure(name, score.value if math.isfinite(score.value) else None, score.signature)
        for name, score in scores.items()
    )


def append(folder: Path, record: Record) -> Path:
    """Add a record to those of a run."""
    path = folder / RESULTS
    line = json.dumps(asdict(record), ensure_ascii=False, allow_nan=False) + "\n"
    with name_output_errors(path), open_for_append(path) as file:
        if file.tell() and not _ends_a_line(path):  # cut short by a crash: what follows must not be lost with it
            line = "\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())
    return path


def _ends_a_line(path: Path) -> bool:
    with open_regular(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def read(folder: Path) -> list[Record]:
    """The records of a run, oldest first."""
    path = folder / RESULTS
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    if not path.is_file():
        raise InputError(f"{folder}: nothing was measured there (no {RESULTS}): run qkv evaluate {folder} first")
    lines = read_regular(path, LARGEST).decode("utf-8", errors="replace").split("\n")
    records = [_parse(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not records:
        raise InputError(f"{path}: is empty: run qkv evaluate {folder} first")
    return records


def _parse(line: str, where: str) -> Record:
    try:
        found = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise InputError(f"{where} is cut short or not JSON: remove it, or run qkv evaluate again") from None
    return build(Record, found, where)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")
