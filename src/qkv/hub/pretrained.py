"""Pretrained models by name: those of the package, in `qkv/pretrained`, and those downloaded into the user's cache.

A packaged model is a folder with the files of a saved model and of its training run: the recipe (manifest.json,
recipe.toml), the recorded evaluations of these weights (results.jsonl), a model card (README.md), and checkpoint.json,
which has the training record, the size and SHA-256 of every file, and an example input unless that of its pipeline
fits. `qkv models package` makes one from a run.

catalog.json has larger models that are not in the package, with the SHA-256 of their checkpoint.json. They are
downloaded from LOCATION/NAME/FILE, where LOCATION is a URL set by the environment variable QKV_MODELS or an option.
"""

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from qkv.config import Config, build
from qkv.errors import CheckpointError, InputError
from qkv.hub.checkpoint_manifest import MANIFEST_FILE, read_manifest
from qkv.registry import nearest
from qkv.runtime.documents import read_object
from qkv.runtime.download import Progress, download
from qkv.runtime.files import atomic_folder, cache_root, check_output_folder
from qkv.runtime.text import printable

LOCATION_VARIABLE = "QKV_MODELS"
CATALOG = "catalog.json"
CARD = "README.md"
SIZES = "sizes"  # key of checkpoint.json: bytes of each file
EXAMPLE = "example"  # key of checkpoint.json: an input of the model
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
SCHEMES = ("https", "http", "file")  # every file is verified by its SHA-256
MAX_FILES, MAX_BYTES = 32, 2**31  # of a downloaded model
MAX_MANIFEST_BYTES = 2**20

Bar = Callable[[str, int], AbstractContextManager[Progress]]


class CatalogEntry(Config):
    """A model that can be downloaded."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # of checkpoint.json
    manifest_bytes: Annotated[int, Field(ge=1, le=MAX_MANIFEST_BYTES)]  # size of checkpoint.json
    task: str  # title of the task
    size: int  # bytes of all files
    score: str  # of the recorded evaluation in its card
    purpose: str  # one sentence


def packaged_folder() -> Path:
    """Return the folder of the models in the package."""
    return Path(str(files("qkv") / "pretrained"))


def download_folder() -> Path:
    """Return the folder of downloaded models."""
    return cache_root() / "models"


def pretrained_names() -> list[str]:
    """Return the names of the models that can be loaded by name: packaged ones, then downloaded ones."""
    folders = [packaged_folder(), download_folder()]
    found = [sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_FILE}")) for folder in folders]
    return list(dict.fromkeys(name for names in found for name in names if NAME.fullmatch(name)))


def pretrained_folder(name: str) -> Path | None:
    """Return the folder of a packaged or downloaded model; None if there is none of this name."""
    if not NAME.fullmatch(name):
        return None
    candidates = (packaged_folder() / name, download_folder() / name)
    return next((folder for folder in candidates if (folder / MANIFEST_FILE).is_file()), None)


@cache
def read_catalog() -> dict[str, CatalogEntry]:
    """Return the models that can be downloaded, by name."""
    path = packaged_folder() / CATALOG
    return {name: build(CatalogEntry, entry, f"{path}: {name}") for name, entry in read_object(path).items()}


def unknown_model(name: str) -> str:
    """Return the message for a name that is neither a folder nor a model."""
    if name in read_catalog():
        return f"{name}: not downloaded yet: run qkv models download {name}"
    known = [*pretrained_names(), *read_catalog()]
    return (
        f"{name}: no such folder or pretrained model{nearest(name, known)}; qkv models lists the models; models of the "
        "Hugging Face Hub are named owner/name"
    )


def recorded_example(folder: Path) -> str:
    """Return the example input in the metadata of a packaged model; "" if there is none."""
    if not (folder / MANIFEST_FILE).is_file():
        return ""
    example = read_manifest(folder).get(EXAMPLE)
    return example if isinstance(example, str) else ""


def package_size(folder: Path) -> int:
    """Return the bytes of all files of a packaged model."""
    return sum(path.stat().st_size for path in folder.iterdir())


def download_model(
    name: str, location: str | None = None, bar: Bar = lambda name, size: nullcontext(lambda done: None)
) -> Path:
    """Download a model of the catalog and return its folder; every file is verified by its SHA-256.

    `location` is a URL, by default that of the environment variable QKV_MODELS.
    """
    if (existing := pretrained_folder(name)) is not None:
        return existing
    catalog = read_catalog()
    if name not in catalog:
        if not catalog:
            packaged = ", ".join(pretrained_names())
            raise InputError(
                f"{printable(name)}: not a pretrained model; there is none to download, all are in the package: "
                f"{packaged}"
            )
        raise InputError(f"{printable(name)}: not a model that can be downloaded{nearest(name, catalog)}")
    location = location or os.environ.get(LOCATION_VARIABLE)
    if not location:
        raise InputError(
            f"{name}: no location to download models from is configured: set the environment variable "
            f"{LOCATION_VARIABLE} or pass --from URL (https, http or file), the parent of the folder {name}"
        )
    out = download_folder() / name
    check_output_folder(out)

    def fetch(file: str, size: int, digest: str) -> None:
        with bar(file, size) as progress:
            url = f"{str(location).rstrip('/')}/{name}/{file}"
            download(url, scratch / file, digest=digest, size=size, progress=progress, schemes=SCHEMES)

    with atomic_folder(out) as scratch:
        fetch(MANIFEST_FILE, catalog[name].manifest_bytes, catalog[name].sha256)
        for file, (size, digest) in listed_files(scratch).items():
            fetch(file, size, digest)
    return out


def listed_files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the size and SHA-256 of the files that checkpoint.json lists; raise unless they are plain and small."""
    record = read_manifest(folder)
    sizes, path = record.get(SIZES), folder / MANIFEST_FILE
    if not isinstance(sizes, dict) or sizes.keys() != record["sha256"].keys() or len(sizes) > MAX_FILES:
        raise CheckpointError(f"{path}: must list the size and SHA-256 of at most {MAX_FILES} files")
    listed: dict[str, tuple[int, str]] = {}
    for file, size in sizes.items():
        digest: Any = record["sha256"][file]
        plain = Path(file).name == file and not file.startswith(".")
        if not plain or type(size) is not int or not 0 <= size <= MAX_BYTES or not isinstance(digest, str):
            raise CheckpointError(f"{path}: {printable(repr(file))} is not a file of at most {MAX_BYTES:,} bytes")
        listed[file] = size, digest
    return listed
