"""The small text files of a saved model, read with care: they may come from anywhere."""

import json
from pathlib import Path
from typing import Any

from qkv.errors import CheckpointError

LARGEST_OBJECT = 2**20  # bytes of JSON that are read at all


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds; one that says a thing twice is no better than one that cannot be read."""
    try:
        data = json.loads(read_text(path, LARGEST_OBJECT), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cut short or altered: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
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
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return table
