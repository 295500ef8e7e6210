"""Checkpoint manifest: metadata and the SHA-256 of every file, so that corruption is detected before loading."""

import hashlib
import json
from pathlib import Path
from typing import Any

from qkv.errors import CheckpointError
from qkv.runtime.documents import MAX_JSON_BYTES, parse_object, read_text
from qkv.runtime.files import sha256

MANIFEST_FILE = "checkpoint.json"


def write_manifest(folder: Path, record: dict[str, Any]) -> None:
    """Write `record`, the SHA-256 of all files in the folder, and a hash of both."""
    manifest = {**record, "sha256": {path.name: sha256(path) for path in sorted(folder.iterdir())}}
    (folder / MANIFEST_FILE).write_text(with_digest(manifest), encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a folder's manifest without verifying the files."""
    path = folder / MANIFEST_FILE
    if not path.exists():
        raise CheckpointError(f"{folder}: incomplete checkpoint: no {MANIFEST_FILE}")
    record = parse_with_digest(read_text(path, MAX_JSON_BYTES), path)
    if not isinstance(record.get("sha256"), dict):
        raise CheckpointError(f"{path}: truncated or modified since it was saved (no hashes)")
    return record


def verify_manifest(folder: Path) -> dict[str, Any]:
    """Read a folder's manifest and verify the SHA-256 of every file."""
    record = read_manifest(folder)
    for name, expected in record["sha256"].items():
        path = folder / Path(name).name
        if not path.is_file():
            raise CheckpointError(f"{path}: missing from the checkpoint")
        if sha256(path) != expected:
            raise CheckpointError(f"{path}: truncated or modified since it was saved (SHA-256 mismatch)")
    return record


def with_digest(record: dict[str, Any]) -> str:
    """Serialize a record as JSON that includes its own SHA-256."""
    return json.dumps({**record, "digest": _digest(record)}, indent=2) + "\n"


def parse_with_digest(text: str, path: Path) -> dict[str, Any]:
    """Parse a record written by `with_digest` and verify its hash; `path` opens the error message."""
    record = parse_object(text, path)
    if record.pop("digest", None) != _digest(record):
        raise CheckpointError(f"{path}: truncated or modified since it was saved (SHA-256 mismatch)")
    return record


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
