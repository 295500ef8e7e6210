"""Objects of the library `datasets`, written to a folder that `--data` and `data.train` take.

folder = export_dataset(datasets.load_dataset("imdb"))
train.jsonl, valid.jsonl, test.jsonl      one example per line; class labels are written by name
images/, audio/                           the files of columns with images or recordings
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qkv.datasets.dataset_cache import cache_folder
from qkv.datasets.formats.folders import SPLIT_NAMES
from qkv.datasets.formats.sniff import binary_kind
from qkv.errors import InputError
from qkv.runtime.files import atomic_folder, exclusive_lock, read_regular
from qkv.runtime.text import printable

EXPORTED = "exported"  # folder in the cache
MEDIA = {"PNG image": ".png", "JPEG image": ".jpg", "GIF image": ".gif", "TIFF image": ".tif"}
MAX_FILE_BYTES = 2**28


def is_dataset(data: object) -> bool:
    """Return whether an object is a Dataset or DatasetDict of the library `datasets`."""
    return type(data).__module__.partition(".")[0] == "datasets"


def export_dataset(data: Any, folder: Path | None = None) -> Path:
    """Write a Dataset or DatasetDict of `datasets` to a folder, by default in the cache, and return the folder."""
    splits = _splits(data)
    if folder is None:
        fingerprint = hashlib.sha256(" ".join(f"{key} {part._fingerprint}" for key, part in splits.items()).encode())
        folder = cache_folder().parent / EXPORTED / fingerprint.hexdigest()[:16]
        if folder.exists():
            return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder.parent, wait=True):
        if not folder.exists():
            with atomic_folder(folder) as scratch:
                for split, part in splits.items():
                    _write_split(part, split, scratch)
    return folder


def _splits(data: Any) -> dict[str, Any]:
    """Return the splits of a dataset by the names that qkv gives them."""
    if not is_dataset(data) or not (isinstance(data, Mapping) or hasattr(data, "features")):
        raise InputError(f"expected a Dataset or DatasetDict of the library datasets, not {type(data).__name__}")
    parts = dict(data) if isinstance(data, Mapping) else {"train": data}
    named = {
        split: next((parts[name] for name in parts if name.lower() in names), None)
        for split, names in SPLIT_NAMES.items()
    }
    splits = {split: part for split, part in named.items() if part is not None}
    if "train" not in splits:
        raise InputError(f"the dataset has no split train, only {', '.join(map(str, parts))}")
    for split, part in splits.items():
        if not hasattr(part, "_fingerprint") or not hasattr(part, "__len__"):
            raise InputError(f"the split {split} is a stream: load it without streaming=True")
    return splits


def _write_split(data: Any, split: str, folder: Path) -> None:
    media = {name: kind for name, feature in data.features.items() if (kind := _media(feature))}
    for name in media:  # as the bytes of the file
        data = data.cast_column(name, type(data.features[name])(decode=False))
    converters = {name: _converter(feature) for name, feature in data.features.items() if name not in media}
    with (folder / f"{split}.jsonl").open("x", encoding="utf-8") as file:
        for number, row in enumerate(data):
            entry = {name: convert(row[name]) for name, convert in converters.items()}
            for name, kind in media.items():
                entry[name] = _write_media(row[name], kind, f"{split}-{number:07}", folder)
            file.write(json.dumps(entry, ensure_ascii=False, default=str) + "\n")


def _media(feature: Any) -> str:
    """Return the folder of the files of a column with images or recordings; "" for other columns."""
    return {"Image": "images", "Audio": "audio"}.get(type(feature).__name__, "")


def _converter(feature: Any) -> Callable[[Any], Any]:
    """Return a function from the values of a column to JSON: the names of class labels, also in lists."""
    if hasattr(feature, "int2str"):
        return lambda value: feature.int2str(value) if isinstance(value, int) and value >= 0 else None
    inner: Any = getattr(feature, "feature", None)
    if hasattr(inner, "int2str"):
        return lambda values: [inner.int2str(value) for value in values]
    return lambda value: value


def _write_media(value: Mapping[str, Any] | None, kind: str, name: str, folder: Path) -> str:
    """Write the file of a cell and return its path in the folder; "" for an empty cell."""
    if value is None:
        return ""
    data = value.get("bytes") or read_regular(Path(str(value.get("path"))), MAX_FILE_BYTES)
    suffix = MEDIA.get(binary_kind(data) or "", ".webp") if kind == "images" else ".wav"
    if kind == "audio" and data[:4] != b"RIFF":
        raise InputError(f"{printable(str(value.get('path')), 80)}: not a WAV file; only WAV recordings are supported")
    (folder / kind).mkdir(exist_ok=True)
    (folder / kind / f"{name}{suffix}").write_bytes(data)
    return f"{kind}/{name}{suffix}"
