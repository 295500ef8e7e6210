"""What the runs of a table are called."""

import json
import re

from qkv.data.config import APPLIES_WHEN
from qkv.evaluation.record import Record

FOLD = "data.fold"
FILES = ("data.train", "data.valid", "data.test")  # a user's own pairs
FOLDERS = ("init",)
RUNS = "runs"  # the folder that everybody's runs are in, if not told otherwise
NOT_IN_A_NAME = (FOLD, "train.validate_every", "train.save_every", "train.keep")  # the last change what is looked at
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def row_label(record: Record) -> str:
    """What tells a row from others: recipe, changes, and how answers were looked for."""
    return f"{recipe_label(record)}, {how}" if (how := search_label(record)) else recipe_label(record)


def recipe_label(record: Record) -> str:
    """The recipe, and what was set otherwise."""
    told = [change for change in published_changes(record) if change.partition("=")[0] not in NOT_IN_A_NAME]
    return " ".join((record.recipe, *told))


def search_label(record: Record) -> str:
    """How answers were looked for, where that is done."""
    if record.task != "translate":
        return ""
    beam = "greedy" if record.beam == 1 else f"beam {record.beam}"
    return beam if record.length_penalty == 1.0 else f"{beam}, length penalty {record.length_penalty:g}"


def fold_of(record: Record) -> int | None:
    """Which part was tested on, of data that are to be tested on part by part."""
    if record.data not in APPLIES_WHEN["fold"]:
        return None
    said = [change.partition("=")[2] for change in record.changes if change.startswith(f"{FOLD}=")]
    return int(said[0]) if said and said[0].isdecimal() else 0


def published_changes(record: Record) -> list[str]:
    """The changes as a page may show them: with the names of a user's files, but not where they lie."""
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
