"""Which recipe a run was made by, told from the recipe's content: a run keeps what was trained, not what was typed."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

NO_CHANGE = ("seed", "data.folder")  # rows have several seeds, and it matters what data are, not where they lie
BARE = re.compile(r"(?!(true|false|inf|nan)$)[A-Za-z][A-Za-z0-9_:-]*")


def closest_recipe(recipe: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """The known recipe that needs the fewest changes, and these, as `--set` takes them; the seed is no change.

    A recipe that cannot be had from any known one for the same task and model by setting keys has the name "" and no
    changes.
    """
    alike = {name: other for name, other in known.items() if _subject(other) == _subject(recipe)}
    found = [(changes, name) for name, other in alike.items() if (changes := _changes(other, recipe)) is not None]
    if not found:
        return "", ()
    changes, name = min(found, key=lambda one: (len(one[0]), one[1]))
    return name, tuple(changes)


def _subject(recipe: Mapping[str, Any]) -> tuple[Any, Any]:
    """What a recipe is about; one about something else is another recipe, however few keys it would take."""
    return recipe.get("task"), recipe.get("model", {}).get("name")


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str] | None:
    """What to set in `before` to have `after`; None where a key would have to go, which cannot be set."""
    old, new = ({key: value for key, value in _flat(table) if key not in NO_CHANGE} for table in (before, after))
    if old.keys() - new.keys():
        return None
    written = {key: _written(value) for key, value in old.items()}
    return [f"{key}={_written(value)}" for key, value in new.items() if written.get(key) != _written(value)]


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key; one that is None is as good as not there."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _written(value: Any) -> str:
    """A value in TOML's notation; a word that TOML could not take for anything else goes without quotes."""
    if isinstance(value, str) and BARE.fullmatch(value):
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)  # JSON has no inf
