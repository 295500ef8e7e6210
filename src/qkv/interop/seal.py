"""A sealed folder: its last file lists the SHA-256 of every other, so that damage is found before it is used."""

import hashlib
import json
from pathlib import Path
from typing import Any

from qkv.errors import CheckpointError
from qkv.interop.document import LARGEST_OBJECT, parse_object, read_text
from qkv.runtime.files import sha256

SEAL = "checkpoint.json"


def seal(folder: Path, record: dict[str, Any]) -> None:
    """Write the seal: `record`, the hashes of all files that are in the folder now, and a hash of these two."""
    sealed = {**record, "sha256": {path.name: sha256(path) for path in sorted(folder.iterdir())}}
    (folder / SEAL).write_text(with_digest(sealed), encoding="utf-8")


def read_seal(folder: Path) -> dict[str, Any]:
    """The record of a sealed folder, without looking at the files it seals."""
    path = folder / SEAL
    if not path.exists():
        raise CheckpointError(f"{folder}: no {SEAL}: not a whole checkpoint")
    record = parse_with_digest(read_text(path, LARGEST_OBJECT), path)
    if not isinstance(record.get("sha256"), dict):
        raise CheckpointError(f"{path}: cut short or altered since it was saved (it has no hashes)")
    return record


def verify(folder: Path) -> dict[str, Any]:
    """The record of a sealed folder, after every file was found to be what was sealed."""
    record = read_seal(folder)
    for name, expected in record["sha256"].items():
        path = folder / Path(name).name
        if not path.is_file():
            raise CheckpointError(f"{path}: missing from the checkpoint")
        if sha256(path) != expected:
            raise CheckpointError(f"{path}: cut short or altered since it was saved (its SHA-256 differs)")
    return record


def with_digest(record: dict[str, Any]) -> str:
    """Write a record as JSON that also holds the SHA-256 of itself."""
    return json.dumps({**record, "seal": _digest(record)}, indent=2) + "\n"


def parse_with_digest(text: str, path: Path) -> dict[str, Any]:
    """Read a record that `with_digest` wrote; `path` opens the error message of one that was altered."""
    record = parse_object(text, path)
    if record.pop("seal", None) != _digest(record):
        raise CheckpointError(f"{path}: cut short or altered since it was saved (its SHA-256 differs)")
    return record


def _digest(sealed: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()
