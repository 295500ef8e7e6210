"""The folder of Flickr8k (Hodosh, Young and Hockenmaier 2013), or any that has its captions in the same form.

    Flickr8k.token.txt             a line "1000268201.jpg#0 <tab> A child in a pink dress ." for each caption, or
    captions.txt                   the same as "image,caption", with a line of headings
    Flicker8k_Dataset/, Images/    the pictures, in one of these folders
    Flickr_8k.trainImages.txt      which pictures train, and likewise devImages and testImages

Without the last three files a hash of its name decides the split of a picture.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from qkv.data.captions import Captions, read_captioned
from qkv.data.files import digest, read_lines
from qkv.data.store import Store
from qkv.errors import InputError

TOKENS, TABLE = "Flickr8k.token.txt", "captions.txt"
PICTURES = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images", ".")
LISTS = {"train": "Flickr_8k.trainImages.txt", "valid": "Flickr_8k.devImages.txt", "test": "Flickr_8k.testImages.txt"}


def read(store: Store, side: int, size: int | None = None, features: Path | None = None) -> dict[str, Captions]:
    """The pictures of each split, scaled to so many pixels a side; of the training split the first `size`."""
    folder = _found(store)
    said: dict[str, list[str]] = {}
    for name, caption in _lines(folder):
        said.setdefault(name, []).append(caption)
    pictures = next(folder / name for name in PICTURES if (folder / name).is_dir())
    splits: dict[str, Captions] = {}
    for split, names in _splits(folder, list(said)).items():
        if not names and split != "test":
            raise InputError(f"{folder}: none of its pictures is for the split {split}")
        taken = names[:size] if split == "train" else names
        if taken:
            splits[split] = read_captioned({name: said[name] for name in taken}, pictures, side, features)
    return splits


def _found(store: Store) -> Path:
    for folder in store.folders:
        for place in (folder, folder / "flickr8k"):
            if any((place / name).is_file() for name in (TOKENS, TABLE)):
                return place
    looked = ", ".join(str(folder) for folder in store.folders)
    raise InputError(
        f"flickr8k: neither {TOKENS} nor {TABLE} is in {looked}, or in a folder flickr8k there: name the folder of the "
        "pictures and captions with data.folder"
    )


def _lines(folder: Path) -> Iterator[tuple[str, str]]:
    if (folder / TOKENS).is_file():
        for number, line in enumerate(read_lines(folder / TOKENS), start=1):
            name, tab, caption = line.partition("\t")
            if not tab or not caption.strip():
                raise InputError(f"{folder / TOKENS}: line {number} is not a picture, a tab and a caption")
            yield name.partition("#")[0], caption.strip()
        return
    for number, row in enumerate(csv.reader(read_lines(folder / TABLE)), start=1):
        if len(row) != 2 or not row[1].strip():
            raise InputError(f"{folder / TABLE}: line {number} is not a picture, a comma and a caption")
        if number > 1:
            yield row[0].strip(), row[1].strip()


def _splits(folder: Path, names: list[str]) -> dict[str, list[str]]:
    if all((folder / file).is_file() for file in LISTS.values()):
        known = set(names)
        return {
            split: [name for line in read_lines(folder / file) if (name := line.strip()) in known]
            for split, file in LISTS.items()
        }
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for name in names:
        number = int.from_bytes(digest(name)[:4], "big") % 10
        splits["test" if number == 0 else "valid" if number == 1 else "train"].append(name)
    return splits
