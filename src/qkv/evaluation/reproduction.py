"""How a run was made: the commands that make it again, and the circumstances under which they were run."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from qkv.evaluation.labels import FOLD as FOLD_KEY
from qkv.evaluation.labels import fold_of, published_changes
from qkv.evaluation.markdown import code, plain
from qkv.evaluation.record import Record

SHOWN_OF_A_HASH = 12
SEED, FOLD = "$SEED", "$FOLD"  # what loops go over
FROM_FOLDERS = ("flickr8k", "coco")  # data that a user has, and no one else knows where


def reproduction_steps(records: Sequence[Record]) -> list[str]:
    """The runs of a row as lines of Markdown: the commands that make them again, then where that was done."""
    runs: dict[tuple[int, tuple[str, ...]], list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.seed, fold_of(record) or 0)):
        runs.setdefault((record.seed, record.changes), []).append(record)
    alike: dict[str, list[list[Record]]] = {}
    for run in runs.values():
        alike.setdefault(_commands(run, SEED, FOLD), []).append(run)
    made = [line for group in alike.values() for line in _told(group)]
    return [*made, *sorted({plain(_circumstances(record)) for record in records})]


def _told(runs: Sequence[Sequence[Record]]) -> list[str]:
    """Runs that differ in nothing but seed and fold: as a loop over these, or each by itself."""
    first = runs[0]
    if first[0].command:
        return [code(first[0].command)]
    seeds = sorted({run[0].seed for run in runs})
    folds = [fold for fold in sorted({fold_of(run[0]) for run in runs}, key=str) if fold is not None]
    if len(runs) != len(seeds) * max(1, len(folds)):
        return [line for run in runs for line in _told([run])]
    if not first[0].shipped:
        return [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}: {_commands(first, SEED, FOLD)}"]
    loops = [
        f"for {name.removeprefix('$')} in {' '.join(map(str, values))}: "
        for name, values in ((SEED, seeds), (FOLD, folds))
        if len(values) > 1
    ]
    return ["".join(loops) + _commands(first, _each(SEED, seeds), _each(FOLD, folds))]


def _each(name: str, values: Sequence[int]) -> str:
    return name if len(values) > 1 else "".join(map(str, values))


def _commands(records: Sequence[Record], seed: str, fold: str) -> str:
    """The commands that make a run again, with these in place of its seed and fold."""
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
    """The command that trains the run again; from where the user's own pairs lie, if it was trained on such."""
    changes = _changes(record, fold)
    folder = ["--set data.folder=FOLDER"] if record.data in FROM_FOLDERS else []
    named = [f"--out {_folder(record, seed, fold)}"] if changes else []  # else it is what `train` takes
    told = [change if change.endswith(FOLD) else shlex.quote(change) for change in changes]  # a loop fills it in
    recipe = shlex.quote(record.recipe)
    return " ".join(["qkv train", recipe, *(f"--set {one}" for one in [*told, f"seed={seed}"]), *folder, *named])


def evaluate_command(records: Sequence[Record], seed: str, fold: str = "") -> str:
    """The command that measures it again."""
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
