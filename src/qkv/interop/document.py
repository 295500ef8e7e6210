"""The small text files of a saved model, read with care: they may come from anywhere."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qkv.errors import CheckpointError, InputError

LARGEST_OBJECT = 2**20  # bytes of JSON that are read at all
LONGEST_MESSAGE = 500  # characters
DEEPEST = 32  # objects and lists inside one another


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds."""
    return parse_object(read_text(path, LARGEST_OBJECT), path)


def parse_object(text: str, path: Path) -> dict[str, Any]:
    """The JSON object of a text; one that says a thing twice is no better than one that cannot be read."""
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cut short or altered: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    if _is_deeper(data, DEEPEST):
        raise CheckpointError(f"{path}: holds values inside values, more than {DEEPEST} deep")
    return data


def read_text(path: Path, largest: int) -> str:
    """The text of a UTF-8 file of at most `largest` bytes."""
    try:
        if path.stat().st_size > largest:
            raise CheckpointError(f"{path}: larger than {largest // 2**20} MiB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at byte {error.start}") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {shown(key)!r} is there twice")
        table[key] = value
    return table


def _is_deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(levels == 0 or _is_deeper(one, levels - 1) for one in inside)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say what is wrong with a file, whoever finds it, in one line that begins with the file."""
    try:
        yield
    except InputError as error:
        where = "" if str(error).startswith(str(path)) else f"{path}: "
        raise CheckpointError(shown(f"{where}{error}", len(str(path)) + LONGEST_MESSAGE)) from None


def shown(text: str, longest: int = 200) -> str:
    """A text out of a file, fit for one line of an error message."""
    whole = text if len(text) <= longest else f"{text[:longest]}..."
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in whole)
