"""How a run was made: the commands that make it again, and the circumstances under which they were run."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from qkv.evaluation.labels import published_changes
from qkv.evaluation.record import Record

SHOWN_OF_A_HASH = 12


def how_made(records: Sequence[Record]) -> list[str]:
    """Each run of a row, by the commands that make it again, and then where that was done."""
    runs: dict[tuple[int, tuple[str, ...]], list[Record]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        runs.setdefault((record.seed, record.changes), []).append(record)
    return [*map(_commands, runs.values()), *sorted({_circumstances(record) for record in records})]


def _commands(records: Sequence[Record]) -> str:
    first = records[0]
    if first.shipped:
        return f"`{train_command(first)}`, then `{evaluate_command(records)}`"
    return (
        f"seed {first.seed}: trained by the recipe.toml in its folder, for no recipe that comes with qkv gives it; "
        f"evaluated with `{_evaluate_options(records)}`"
    )


def train_command(record: Record) -> str:
    """The command that trains the run again; from where the user's own pairs lie, if it was trained on such."""
    changes = [*published_changes(record), f"seed={record.seed}"]
    named = [f"--out {_folder(record)}"] if record.changes else []  # else it is the folder that `train` takes
    return " ".join(["qkv train", record.recipe, *(f"--set {shlex.quote(change)}" for change in changes), *named])


def evaluate_command(records: Sequence[Record]) -> str:
    """The command that measures it again."""
    return f"qkv evaluate {_folder(records[0])} {_evaluate_options(records)}"


def _evaluate_options(records: Sequence[Record]) -> str:
    first = records[0]
    splits = [f"--split {split}" for split in sorted({record.split for record in records})]
    beam = [f"--beam {first.beam}"] if first.task == "translate" else []
    penalty = [] if first.length_penalty == 1.0 else [f"--length-penalty {first.length_penalty:g}"]
    return " ".join([*splits, *beam, *penalty])


def _folder(record: Record) -> str:
    values = (change.partition("=")[2] for change in published_changes(record))
    name = "-".join([PurePath(record.recipe).stem, *values, str(record.seed)])
    return "runs/" + re.sub(r"[^A-Za-z0-9._]+", "-", name)


def _circumstances(record: Record) -> str:
    """Where and by which code the run was trained, and, as far as that was otherwise, evaluated; and when."""
    code = _code(record.torch, record.commit, record.source_hash, f"qkv {record.version}")
    evaluated = f"evaluated on {record.device}, {code}"
    if not record.trained_on:
        return f"{evaluated}, {record.date[:10]}"
    trained_by = _code(record.trained_torch, record.trained_commit, record.trained_source_hash, "no commit")
    graphs = " with CUDA graphs" if record.graphs else ""
    trained = f"trained on {record.trained_on} in {record.precision}{graphs}, {trained_by}"
    in_evaluation = (record.device, record.torch, record.commit, record.source_hash)
    in_training = (record.trained_on, record.trained_torch, record.trained_commit, record.trained_source_hash)
    return f"{trained}{'' if in_evaluation == in_training else f'; {evaluated}'}, {record.date[:10]}"


def _code(torch: str, commit: str, source_hash: str, without_commit: str) -> str:
    known = f"commit {commit[:SHOWN_OF_A_HASH]}" if commit else without_commit
    return f"torch {torch}, {known} (source {source_hash[:SHOWN_OF_A_HASH]})"
