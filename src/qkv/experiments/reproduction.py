"""How to reproduce a run: its commands, and the environment they were run in."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from qkv.experiments.markdown import code, plain
from qkv.experiments.results import Record
from qkv.experiments.run_labels import FOLD as FOLD_KEY
from qkv.experiments.run_labels import fold_of, published_changes

HASH_DIGITS = 12
SEED, FOLD = "$SEED", "$FOLD"  # loop variables
MANUAL_DATA = ("flickr8k", "coco")  # downloaded by the user into a folder of their own


def reproduction_steps(records: Sequence[Record]) -> list[str]:
    """Return Markdown lines with the commands that reproduce the runs of a row, then their environments."""
    runs: dict[tuple[int, tuple[str, ...]], list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.seed, fold_of(record) or 0)):
        runs.setdefault((record.seed, record.changes), []).append(record)
    by_command: dict[str, list[list[Record]]] = {}
    for run in runs.values():
        by_command.setdefault(_commands(run, SEED, FOLD), []).append(run)
    commands = [line for group in by_command.values() for line in _loop(group)]
    return [*commands, *sorted({plain(_environment(record)) for record in records})]


def _loop(runs: Sequence[Sequence[Record]]) -> list[str]:
    """Describe runs that differ in seed and fold only, as a loop over these if it is complete, else one by one."""
    first = runs[0]
    if first[0].command:
        return [code(first[0].command)]
    seeds = sorted({run[0].seed for run in runs})
    folds = [fold for fold in sorted({fold_of(run[0]) for run in runs}, key=str) if fold is not None]
    if len(runs) != len(seeds) * max(1, len(folds)):
        return [line for run in runs for line in _loop([run])]
    if not first[0].shipped:
        return [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}: {_commands(first, SEED, FOLD)}"]
    loops = [
        f"for {name.removeprefix('$')} in {' '.join(map(str, values))}: "
        for name, values in ((SEED, seeds), (FOLD, folds))
        if len(values) > 1
    ]
    return ["".join(loops) + _commands(first, _loop_variable(SEED, seeds), _loop_variable(FOLD, folds))]


def _loop_variable(name: str, values: Sequence[int]) -> str:
    return name if len(values) > 1 else "".join(map(str, values))


def _commands(records: Sequence[Record], seed: str, fold: str) -> str:
    """Return the commands that reproduce a run, with the given seed and fold."""
    first = records[0]
    if first.command:
        return first.command
    if first.shipped:
        return f"{code(train_command(first, seed, fold))}, then {code(evaluate_command(records, seed, fold))}"
    return (
        "trained by the recipe.toml in its folder, for no recipe that comes with qkv gives it; "
        f"evaluated with {code(_evaluate_options(records))}"
    )


def train_command(record: Record, seed: str, fold: str = "") -> str:
    """Return the command that trains the run; user files are given by name only."""
    changes = _changes(record, fold)
    folder = ["--set data.folder=FOLDER"] if record.data in MANUAL_DATA else []
    out = [f"--out {_folder(record, seed, fold)}"] if changes else []  # else the default of `train`
    quoted = [change if change.endswith(FOLD) else shlex.quote(change) for change in changes]  # the shell expands $FOLD
    recipe = shlex.quote(record.recipe)
    return " ".join(["qkv train", recipe, *(f"--set {change}" for change in [*quoted, f"seed={seed}"]), *folder, *out])


def evaluate_command(records: Sequence[Record], seed: str, fold: str = "") -> str:
    """Return the command that evaluates the run."""
    return f"qkv evaluate {_folder(records[0], seed, fold)} {_evaluate_options(records)}"


def _changes(record: Record, fold: str) -> list[str]:
    others = [change for change in published_changes(record) if not change.startswith(f"{FOLD_KEY}=")]
    return others if fold_of(record) is None else [*others, f"{FOLD_KEY}={fold}"]


def _evaluate_options(records: Sequence[Record]) -> str:
    first = records[0]
    splits = [f"--split {shlex.quote(split)}" for split in sorted({record.split for record in records})]
    beam = [f"--beam {first.beam}"] if first.task == "translate" else []
    penalty = [] if first.length_penalty == 1.0 else [f"--length-penalty {first.length_penalty:g}"]
    return " ".join([*splits, *beam, *penalty])


def _folder(record: Record, seed: str, fold: str) -> str:
    values = (change.partition("=")[2] for change in _changes(record, fold))
    name = "-".join([PurePath(record.recipe).stem, *values, seed])
    return "runs/" + re.sub(r"[^A-Za-z0-9._$]+", "-", name)


def _environment(record: Record) -> str:
    """Describe device, code version and date of training, and of evaluation if they differ."""
    code = _version(record.torch, record.commit, record.source_hash, f"qkv {record.version}")
    evaluated = f"evaluated on {record.device}, {code}"
    if not record.trained_on:
        return f"{evaluated}, {record.date[:10]}"
    trained_by = _version(record.trained_torch, record.trained_commit, record.trained_source_hash, "no commit")
    graphs = " with CUDA graphs" if record.graphs else ""
    trained = f"trained on {record.trained_on} in {record.precision}{graphs}, {trained_by}"
    evaluation = (record.device, record.torch, record.commit, record.source_hash)
    training = (record.trained_on, record.trained_torch, record.trained_commit, record.trained_source_hash)
    return f"{trained}{'' if evaluation == training else f'; {evaluated}'}, {record.date[:10]}"


def _version(torch: str, commit: str, source_hash: str, without_commit: str) -> str:
    version = f"commit {commit[:HASH_DIGITS]}" if commit else without_commit
    return f"torch {torch}, {version} (source {source_hash[:HASH_DIGITS]})"
