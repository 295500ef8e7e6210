"""Find the built-in recipe that a run was made from, by comparing their contents."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

IGNORED = ("seed", "data.folder")  # rows have several seeds, and the folder of the data does not matter
UNQUOTED = re.compile(r"(?!(true|false|inf|nan)$)[A-Za-z][A-Za-z0-9_:-]*")


def closest_recipe(recipe: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """Return the name of the known recipe with the fewest changes, and the changes as `--set` assignments.

    Returns "" and no changes if no known recipe for the same task and model can be turned into it by setting keys. The
    seed is ignored.
    """
    similar = {name: other for name, other in known.items() if _task_and_model(other) == _task_and_model(recipe)}
    candidates = [
        (changes, name) for name, other in similar.items() if (changes := _changes(other, recipe)) is not None
    ]
    if not candidates:
        return "", ()
    changes, name = min(candidates, key=lambda candidate: (len(candidate[0]), candidate[1]))
    return name, tuple(changes)


def _task_and_model(recipe: Mapping[str, Any]) -> tuple[Any, Any]:
    return recipe.get("task"), recipe.get("model", {}).get("name")


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str] | None:
    """Return the assignments that turn `before` into `after`; None if a key would have to be removed."""
    old, new = ({key: value for key, value in _flat(table) if key not in IGNORED} for table in (before, after))
    if old.keys() - new.keys():
        return None
    old_values = {key: _to_toml(value) for key, value in old.items()}
    return [f"{key}={_to_toml(value)}" for key, value in new.items() if old_values.get(key) != _to_toml(value)]


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its dotted key; None values are skipped."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _to_toml(value: Any) -> str:
    """Return a value as TOML; a word that can only be a string is not quoted."""
    if isinstance(value, str) and UNQUOTED.fullmatch(value):
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)  # JSON has no inf
