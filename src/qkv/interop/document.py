"""The JSON objects of a saved model, read with care: they may come from anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qkv.config import shown
from qkv.errors import CheckpointError, InputError
from qkv.runtime.document import parse_json, read_text

__all__ = ["parse_object", "read_object", "read_text", "reading", "shown"]

LARGEST_OBJECT = 2**20  # bytes of JSON that are read at all
LONGEST_MESSAGE = 500  # characters
DEEPEST = 32  # objects and lists inside one another


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds."""
    return parse_object(read_text(path, LARGEST_OBJECT), path)


def parse_object(text: str, path: Path) -> dict[str, Any]:
    """The JSON object of a text."""
    data = parse_json(text, path)
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    if _is_deeper(data, DEEPEST):
        raise CheckpointError(f"{path}: holds values inside values, more than {DEEPEST} deep")
    return data


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
