"""Small files that may come from anywhere, read with care: never more than asked for, and every fault in one line."""

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


def read_bytes(path: Path, largest: int) -> bytes:
    """Read a regular file of at most `largest` bytes."""
    try:
        return read_regular(path, largest)
    except InputError as error:
        raise CheckpointError(str(error)) from None


def read_text(path: Path, largest: int) -> str:
    """The text of a UTF-8 file of at most `largest` bytes, its lines ended as they are here."""
    try:
        return read_bytes(path, largest).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at byte {error.start}") from None


def parse_json(text: str, path: Path) -> Any:
    """What a JSON text says; one that says a thing twice is no better than one that cannot be read."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cut short or altered: not valid JSON: {error}") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key[:200]!r} is there twice")
        table[key] = value
    return table
