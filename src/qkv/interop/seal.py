"""A sealed folder: its last file lists the SHA-256 of every other, so that damage is found before it is used."""

import json
from pathlib import Path
from typing import Any

from qkv.errors import CheckpointError
from qkv.runtime.files import sha256

SEAL = "checkpoint.json"


def seal(folder: Path, record: dict[str, Any]) -> None:
    """Write the seal: `record`, and the hashes of all files that are in the folder now."""
    hashes = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    (folder / SEAL).write_text(json.dumps({**record, "sha256": hashes}, indent=2) + "\n", encoding="utf-8")


def read_seal(folder: Path) -> dict[str, Any]:
    """The record of a sealed folder, without looking at the files it seals."""
    try:
        record = json.loads((folder / SEAL).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: no {SEAL}: not a whole checkpoint") from None
    except ValueError as error:
        raise CheckpointError(f"{folder / SEAL}: cut short or altered: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("sha256"), dict):
        raise CheckpointError(f"{folder / SEAL}: cut short or altered: no list of hashes")
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
