"""The folder of COCO's captions (Chen et al. 2015), or any that has its captions in the same form.

    annotations/captions_train2017.json    {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}
    annotations/captions_val2017.json      the same, to validate on
    train2017/, val2017/                   the pictures

Any other year will do.
"""

from pathlib import Path
from typing import Any

from qkv.data.captions import Captions, read_captioned
from qkv.data.files import read_text
from qkv.data.rows import parse_json
from qkv.data.store import Store
from qkv.errors import InputError

SPLITS = {"train": "train", "valid": "val", "test": "test"}  # as files of ours and of COCO call them


def read(store: Store, side: int, size: int | None = None, features: Path | None = None) -> dict[str, Captions]:
    """The pictures of each split, scaled to so many pixels a side; of the training split the first `size`."""
    folder = _found(store)
    paths = {
        split: path
        for split, word in SPLITS.items()
        for path in sorted((folder / "annotations").glob(f"captions_{word}*.json"))[:1]
    }
    if "valid" not in paths:
        raise InputError(f"{folder}: no annotations/captions_val*.json, so there is nothing to validate on")
    said = {split: _captions(path) for split, path in paths.items()}  # before any picture is read: that takes minutes
    said["train"] = dict(list(said["train"].items())[:size])
    return {
        split: read_captioned(said[split], folder / path.stem.removeprefix("captions_"), side, features)
        for split, path in paths.items()
    }


def _found(store: Store) -> Path:
    for folder in store.folders:
        for place in (folder, folder / "coco"):
            if any((place / "annotations").glob("captions_train*.json")):
                return place
    looked = ", ".join(str(folder) for folder in store.folders)
    raise InputError(
        f"coco: no annotations/captions_train*.json is in {looked}, or in a folder coco there: name the folder of the "
        "pictures and captions with --data-dir FOLDER, or in a recipe with --set data.folder=FOLDER"
    )


def _captions(path: Path) -> dict[str, list[str]]:
    """The captions of each picture that has any, by the name of its file."""
    found = parse_json(read_text(path), str(path))
    match found:
        case {"images": [*images], "annotations": [*annotations]}:
            pass
        case _:
            raise InputError(f'{path}: not COCO\'s captions: it has no lists "images" and "annotations"')
    names = dict(_entry(path, one, "id", "file_name") for one in images)
    said: dict[str, list[str]] = {}
    for one in annotations:
        number, caption = _entry(path, one, "image_id", "caption")
        if number not in names:
            raise InputError(f"{path}: a caption is of picture {number}, which is not among the images")
        if caption.strip():
            said.setdefault(names[number], []).append(" ".join(caption.split()))
    if not said:
        raise InputError(f'{path}: no caption of any picture is in its "annotations": add some')
    return said


def _entry(path: Path, entry: Any, number: str, text: str) -> tuple[int, str]:
    if isinstance(entry, dict):
        key, value = entry.get(number), entry.get(text)
        if isinstance(key, int) and isinstance(value, str):
            return key, value
    raise InputError(f"{path}: an entry without {number} (a number) and {text} (a text)")
