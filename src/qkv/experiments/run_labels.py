"""Labels of runs in tables and figures."""

import json
import re

from qkv.experiments.results import Record
from qkv.registry import registered

FOLD = "data.fold"
FILES = ("data.train", "data.valid", "data.test")  # user files
FOLDERS = ("init",)
RUNS = "runs"  # default folder of runs
# They do not change the model, or (train.compile) by rounding errors only.
NOT_IN_LABEL = (FOLD, "train.validate_every", "train.save_every", "train.keep", "train.compile")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def row_label(record: Record) -> str:
    """Return the label of a row: recipe, changes and search settings."""
    return f"{recipe_label(record)}, {search}" if (search := search_label(record)) else recipe_label(record)


def recipe_label(record: Record) -> str:
    """Return the recipe and its changes."""
    changes = [change for change in published_changes(record) if change.partition("=")[0] not in NOT_IN_LABEL]
    return " ".join((record.recipe, *changes))


def search_label(record: Record) -> str:
    """Return the search settings; "" for tasks without search."""
    task = registered("task").get(record.task)
    if task is None or not task.searches:
        return ""
    beam = "greedy" if record.beam == 1 else f"beam {record.beam}"
    return beam if record.length_penalty == 1.0 else f"{beam}, length penalty {record.length_penalty:g}"


def fold_of(record: Record) -> int | None:
    """Return the test fold, for data with cross-validation."""
    dataset = registered("dataset").get(record.data)
    if dataset is None or "fold" not in dataset.model_fields:
        return None
    values = [change.partition("=")[2] for change in record.changes if change.startswith(f"{FOLD}=")]
    return int(values[0]) if values and values[0].isdecimal() else 0


def published_changes(record: Record) -> list[str]:
    """Return the changes for publication: with the names of a user's files, but without their folders."""
    changes = []
    for change in record.changes:
        key, _, paths = change.partition("=")
        parts = [re.split(r"[/\\]+", path) for path in QUOTED.findall(paths)]
        names = ["/".join(part[-2:]) if part[-2:-1] == [RUNS] else part[-1] for part in parts]
        if key in FILES:
            changes.append(f"{key}={json.dumps(names, ensure_ascii=False)}")
        else:
            changes.append(f"{key}={names[-1]}" if key in FOLDERS and names else change)
    return changes
