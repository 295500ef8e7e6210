"""Evaluation records: one JSON object per line in results.jsonl of a run folder.

A record holds everything that a table needs, so that runs can be compared without their weights.
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from qkv import __version__
from qkv.config import build, override, require
from qkv.datasets.dataset import Dataset
from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.hub.checkpoint_manifest import read_manifest
from qkv.metrics.text_metrics import Bucket
from qkv.runtime import provenance
from qkv.runtime.files import name_output_errors, open_for_append, open_regular, read_regular
from qkv.tasks.base.evaluation import Evaluation
from qkv.training.run import Run
from qkv.training.run_manifest import flat

RESULTS = "results.jsonl"
NOT_RECORDED = ("seed", "data.folder")  # rows have several seeds, and the folder of the data does not matter
MAX_BYTES = 64 * 2**20
UNQUOTED = re.compile(r"(?!(true|false|inf|nan)$)[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Measure:
    """The value of a metric; None if it is undefined."""

    name: str
    value: float | None
    signature: str = ""


@dataclass(frozen=True)
class Record:
    """One evaluation of one run on one split."""

    recipe: str  # name of the built-in recipe, or of a .toml file
    changes: tuple[str, ...]  # its overrides, without the seed: "model.score=dot"
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
    beam: int = 1
    length_penalty: float = 1.0
    command: str = ""  # that produced a result other than a run of qkv, such as a baseline named `recipe`

    def __post_init__(self) -> None:
        names = [measure.name for measure in self.metrics]
        require(len(set(names)) == len(names), "metrics contains a metric twice")

    def score(self, name: str) -> Measure | None:
        """Return the metric with a name, or None if it was not measured."""
        return next((metric for metric in self.metrics if metric.name == name and metric.value is not None), None)


def measures(scores: Mapping[str, float], signatures: Mapping[str, str]) -> tuple[Measure, ...]:
    """Convert scores for a record; NaN and infinity become None, since JSON cannot hold them."""
    return tuple(
        Measure(name, value if math.isfinite(value) else None, signatures.get(name, ""))
        for name, value in scores.items()
    )


def record_evaluation(
    run: Run, model: Any, data: Dataset[Any], split: str, evaluation: Evaluation, search: GenerationConfig
) -> Record:
    """Append an evaluation of a run to its results, with everything needed to reproduce it."""
    recipe, manifest = run.recipe, read_manifest(run.checkpoints[-1])
    state = manifest["state"]
    record = Record(
        recipe=Path(recipe.name).name,
        changes=recorded_changes(recipe.overrides),
        seed=recipe.seed,
        task=recipe.task.registered_name,
        model=recipe.model.registered_name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        steps=state["step"],
        minutes=round(state["seconds"] / 60, 3),
        finished=state["finished"],
        data=recipe.data.registered_name,
        languages=recipe.data.languages,
        lowercase=getattr(recipe.data, "lowercase", False),
        data_hash=data.fingerprint,
        split=split,
        size=evaluation.size,
        left_out=evaluation.skipped,
        metrics=measures(evaluation.scores, evaluation.signatures),
        by_length=evaluation.by_length,
        trained_on=" and then ".join(state["devices"]),
        precision=manifest["precision"],
        graphs=manifest["graphs"],
        trained_torch=manifest["torch"],
        trained_commit=manifest["commit"],
        trained_source_hash=manifest["source_hash"],
        device=provenance.device_name(model.device),
        torch=torch.__version__,
        version=__version__,
        commit=provenance.commit(),
        source_hash=provenance.source_hash(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=evaluation.seconds,
        beam=search.num_beams,
        length_penalty=search.length_penalty,
    )
    append_record(run.folder, record)
    return record


def record_baseline(
    folder: Path, name: str, data_name: str, data: Dataset[Any], split: str, evaluation: Evaluation, command: str
) -> Path:
    """Append the result of a baseline without training to the results of a folder; `command` computes it."""
    with name_output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    record = Record(
        recipe=name,
        changes=(),
        seed=0,
        task="translate",
        model="",
        parameters=0,
        steps=0,
        minutes=0.0,
        finished=True,
        data=data_name,
        languages="",
        lowercase=False,
        data_hash=data.fingerprint,
        split=split,
        size=evaluation.size,
        left_out=evaluation.skipped,
        metrics=measures(evaluation.scores, evaluation.signatures),
        trained_on="",
        device=provenance.device_name(torch.device("cpu")),
        torch=torch.__version__,
        version=__version__,
        commit=provenance.commit(),
        source_hash=provenance.source_hash(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=evaluation.seconds,
        command=command,
    )
    return append_record(folder, record)


def recorded_changes(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return overrides in a normal form, so that equal settings have equal records.

    Each key occurs once, with the last of its values as TOML; a word that can only be a string is not quoted.
    """
    values: dict[str, str] = {}
    for assignment in overrides:
        for key, value in flat(override({}, [assignment])).items():
            values.pop(key, None)
            values[key] = value
    # The name of a term comes before its options, which another name would reset.
    order = sorted(values, key=lambda key: (key.rpartition(".")[0], not key.endswith(".name"), key))
    return tuple(f"{key}={_to_toml(values[key])}" for key in order if key not in NOT_RECORDED)


def _to_toml(value: Any) -> str:
    if isinstance(value, str) and UNQUOTED.fullmatch(value):
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)  # JSON has no inf


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
        runs = any(folder.glob(f"*/{RESULTS}"))
        hint = f"pass the runs in it ({folder}/*)" if runs else f"run qkv evaluate {folder} first"
        raise InputError(f"{folder}: no results there (no {RESULTS}): {hint}")
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
    record = build(Record, table, where)
    trained_on, device = map(provenance.recorded_device, (record.trained_on, record.device))
    return replace(record, trained_on=trained_on, device=device)


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not valid JSON")
