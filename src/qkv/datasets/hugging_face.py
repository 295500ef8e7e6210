"""Data in memory, written to files that `--data` and `data.train` take: objects of `datasets`, DataFrames, dicts.

folder = export_dataset(datasets.load_dataset("imdb"))
file = export_rows(pandas.read_excel("reviews.xlsx"))
train.jsonl, valid.jsonl, test.jsonl      one example per line; class labels are written by name
images/, audio/                           the files of columns with images or recordings
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.datasets.dataset_cache import cache_folder
from qkv.datasets.formats.folders import SPLIT_NAMES
from qkv.datasets.formats.sniff import binary_kind
from qkv.errors import InputError
from qkv.runtime.files import atomic_folder, exclusive_lock, read_regular
from qkv.runtime.text import printable

EXPORTED = "exported"  # folder in the cache
ROWS = "rows.jsonl"
MEDIA = {"PNG image": ".png", "JPEG image": ".jpg", "GIF image": ".gif", "TIFF image": ".tif"}
MAX_FILE_BYTES = 2**28


def is_dataset(data: object) -> bool:
    """Return whether an object is a Dataset or DatasetDict of the library `datasets`."""
    return type(data).__module__.partition(".")[0] == "datasets"


def export_dataset(data: Any, folder: Path | None = None) -> Path:
    """Write a Dataset or DatasetDict of `datasets` to a folder, by default in the cache, and return the folder."""
    splits = _splits(data)
    fingerprint = " ".join(f"{key} {part._fingerprint}" for key, part in splits.items())

    def write(scratch: Path) -> None:
        for split, part in splits.items():
            _write_split(part, split, scratch)

    return _export(folder or _exported(fingerprint.encode()), write)


def has_rows(data: object) -> bool:
    """Return whether an object is a DataFrame of pandas or polars, or a list of dicts."""
    if isinstance(data, Sequence) and not isinstance(data, str):
        return len(data) > 0 and all(isinstance(row, Mapping) for row in data)
    return type(data).__name__ == "DataFrame" and hasattr(data, "columns")


def export_rows(data: Any) -> Path:
    """Write a DataFrame of pandas or polars, or a list of dicts, to a file in the cache, and return the file."""
    if hasattr(data, "to_dicts"):  # polars
        rows = data.to_dicts()
    else:
        rows = data.to_dict("records") if hasattr(data, "columns") else data
    entries = [{str(key): None if _is_nan(value) else value for key, value in row.items()} for row in rows]
    lines = [json.dumps(entry, ensure_ascii=False, default=_to_json) for entry in entries]
    content = "".join(f"{line}\n" for line in lines).encode()
    return _export(_exported(content), lambda scratch: (scratch / ROWS).write_bytes(content)) / ROWS


def data_paths(data: Any) -> list[Path] | None:
    """Return the files of `data`: a path, several, or rows or a dataset, which are exported; None for None."""
    if data is None:
        return None
    if is_dataset(data):
        folder = export_dataset(data)
        return [folder] if isinstance(data, Mapping) else [folder / "train.jsonl"]
    if has_rows(data):
        return [export_rows(data)]
    paths = [data] if isinstance(data, str | os.PathLike) else data
    if not isinstance(paths, list | tuple):
        kind = type(data).__name__
        raise InputError(f"data must be paths, a dataset, a DataFrame or a list of dicts, not a {kind}")
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            kind = type(path).__name__
            raise InputError(f"data must be paths, a dataset, a DataFrame or a list of dicts, not a list of {kind}")
    return [Path(path) for path in paths]


def data_name(path: Path) -> str:
    """Return the name of data in results: the path of a file of the user, and "data" for data in memory."""
    return "data" if cache_folder().parent / EXPORTED in path.parents else str(path)


def name_exported(message: str) -> str:
    """Return a message in which exported files are named as data in memory, and their lines as rows."""
    folder = re.escape(str(cache_folder().parent / EXPORTED))
    rows = re.sub(rf"{folder}/[0-9a-f]+/{re.escape(ROWS)}(?:: line (\d+))?", _name_rows, message)
    return re.sub(rf"{folder}/[0-9a-f]+(?:/(\w+)\.jsonl)?(?:: line (\d+))?", _name_split, rows)


def _name_rows(match: re.Match[str]) -> str:
    return "the DataFrame or list in data" + (f": row {match[1]}" if match[1] else "")


def _name_split(match: re.Match[str]) -> str:
    split = f", split {match[1]}" if match[1] else ""
    return f"the dataset in data{split}" + (f": row {match[2]}" if match[2] else "")


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value  # an empty cell of pandas


def _to_json(value: Any) -> Any:
    """Return a value that JSON does not have: a number of NumPy as a number, anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)


def _exported(fingerprint: bytes) -> Path:
    return cache_folder().parent / EXPORTED / hashlib.sha256(fingerprint).hexdigest()[:16]


def _export(folder: Path, write: Callable[[Path], object]) -> Path:
    """Write the folder unless it exists, complete or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder.parent, wait=True):
        if not folder.exists():
            with atomic_folder(folder) as scratch:
                write(scratch)
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
