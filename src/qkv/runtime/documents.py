"""Read small untrusted files with a size limit and one-line errors."""

import io
import json
from pathlib import Path
from typing import Any

from qkv.errors import CheckpointError, InputError
from qkv.runtime.files import open_regular, read_regular


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a regular file for reading."""
    try:
        return open_regular(path)
    except InputError as error:
        raise CheckpointError(str(error)) from None


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes` bytes."""
    try:
        return read_regular(path, max_bytes)
    except InputError as error:
        raise CheckpointError(str(error)) from None


def read_text(path: Path, max_bytes: int) -> str:
    """Read a UTF-8 file of at most `max_bytes` bytes, with CRLF converted to LF."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at byte {error.start}") from None


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
