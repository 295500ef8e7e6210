"""Evaluation records: one JSON object per line in results.jsonl of a run folder.

A record holds everything that a table needs, so that runs can be compared without their weights.
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
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Measure:
    """The value of a metric; None if it is undefined."""

    name: str
    value: float | None
    signature: str = ""


@dataclass(frozen=True)
class Bucket:
    """Tokenized BLEU of the pairs whose sources have between `least` and `most` words (None: no limit)."""

    least: int
    most: int | None
    pairs: int
    bleu: float


@dataclass(frozen=True)
class Record:
    """One evaluation of one run on one split."""

    recipe: str  # name of the closest built-in recipe
    changes: tuple[str, ...]  # its changes, without the seed: "model.score=dot"
    seed: int
    task: str
    model: str
    parameters: int
    steps: int
    minutes: float  # of training
    finished: bool  # whether training is complete
    data: str
    languages: str  # "en-de", or "" for data without language pairs
    lowercase: bool
    data_hash: str
    split: str
    size: int  # number of pairs, words or characters scored
    left_out: int  # number of pairs too long for the model
    beam: int
    length_penalty: float
    metrics: tuple[Measure, ...]
    trained_on: str  # device, or several in order; "" if unknown
    device: str  # of the evaluation, like the fields up to `seconds`
    torch: str
    version: str
    commit: str  # "" outside a checkout
    source_hash: str
    date: str
    seconds: float
    by_length: tuple[Bucket, ...] = ()
    # Training environment; missing from old records.
    precision: str = ""
    graphs: bool = False  # whether the steps were captured in CUDA graphs
    trained_torch: str = ""
    trained_commit: str = ""
    trained_source_hash: str = ""
    shipped: bool = True  # whether `recipe` is built in; else it is the name of the run's folder
    command: str = ""  # that produced a result other than a run of qkv, such as a baseline named `recipe`

    def __post_init__(self) -> None:
        names = [measure.name for measure in self.metrics]
        require(len(set(names)) == len(names), "metrics contains a metric twice")

    def score(self, name: str) -> Measure | None:
        """Return the metric with a name, or None if it was not measured."""
        return next((metric for metric in self.metrics if metric.name == name and metric.value is not None), None)


def measures(scores: Mapping[str, Score]) -> tuple[Measure, ...]:
    """Convert scores for a record; NaN and infinity become None, since JSON cannot hold them."""
    return tuple(
        Measure(name, score.value if math.isfinite(score.value) else None, score.signature)
        for name, score in scores.items()
    )


def append_record(folder: Path, record: Record) -> Path:
    """Append a record to results.jsonl of a run."""
    path = folder / RESULTS
    line = json.dumps(asdict(record), ensure_ascii=False, allow_nan=False) + "\n"
    with name_output_errors(path), open_for_append(path) as file:
        if file.tell() and not _ends_with_newline(path):  # a line truncated by a crash must not corrupt the next one
            line = "\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())
    return path


def _ends_with_newline(path: Path) -> bool:
    with open_regular(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def read_records(folder: Path) -> list[Record]:
    """Return the records of a run, oldest first."""
    path = folder / RESULTS
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    if not path.is_file():
        raise InputError(f"{folder}: no results there (no {RESULTS}): run qkv evaluate {folder} first")
    lines = read_regular(path, MAX_BYTES).decode("utf-8", errors="replace").split("\n")
    records = [_parse(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not records:
        raise InputError(f"{path}: is empty: run qkv evaluate {folder} first")
    return records


def _parse(line: str, where: str) -> Record:
    try:
        table = json.loads(line, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise InputError(f"{where} is cut short or not JSON: remove it, or run qkv evaluate again") from None
    return build(Record, table, where)


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not valid JSON")
