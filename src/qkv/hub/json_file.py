"""Read the JSON files of a saved model, which may come from an untrusted source."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qkv.errors import CheckpointError, InputError
from qkv.runtime.documents import parse_json, read_text
from qkv.runtime.text import printable

__all__ = ["parse_object", "read_object", "read_text", "reading"]

MAX_JSON_BYTES = 2**20  # maximum size of a JSON file
LONGEST_MESSAGE = 500  # characters
MAX_DEPTH = 32  # nesting depth


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that contains a JSON object."""
    return parse_object(read_text(path, MAX_JSON_BYTES), path)


def parse_object(text: str, path: Path) -> dict[str, Any]:
    """Parse a JSON object; `path` opens the error messages."""
    data = parse_json(text, path)
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: must be a JSON object")
    if _is_deeper(data, MAX_DEPTH):
        raise CheckpointError(f"{path}: nested more than {MAX_DEPTH} levels deep")
    return data


def _is_deeper(value: Any, levels: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(levels == 0 or _is_deeper(child, levels - 1) for child in children)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn input errors into a CheckpointError of one line that begins with `path`."""
    try:
        yield
    except InputError as error:
        prefix = "" if str(error).startswith(str(path)) else f"{path}: "
        raise CheckpointError(printable(f"{prefix}{error}", len(str(path)) + LONGEST_MESSAGE)) from None
