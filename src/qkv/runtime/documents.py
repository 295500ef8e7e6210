"""Read small untrusted files, above all JSON, with a size limit and one-line errors."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qkv.errors import CheckpointError, InputError
from qkv.runtime.files import open_regular, read_regular
from qkv.runtime.text import LONGEST_MESSAGE, printable

MAX_JSON_BYTES = 2**20
MAX_DEPTH = 32  # nesting depth of a JSON object


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a regular file for reading."""
    with reading(path):
        return open_regular(path)


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes` bytes."""
    with reading(path):
        return read_regular(path, max_bytes)


def read_text(path: Path, max_bytes: int) -> str:
    """Read a UTF-8 file of at most `max_bytes` bytes, with CRLF converted to LF."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at byte {error.start}") from None


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


def parse_json(text: str, path: Path) -> Any:
    """Parse JSON; duplicate keys are an error. `path` opens the error message."""
    try:
        return json.loads(text, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: truncated or corrupt: invalid JSON: {error}") from None


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"duplicate key {key[:200]!r}")
        table[key] = value
    return table


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
