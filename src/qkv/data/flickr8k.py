"""The folder of Flickr8k (Hodosh, Young and Hockenmaier 2013), or any that has its captions in the same form.

    Flickr8k.token.txt             a line "1000268201.jpg#0 <tab> A child in a pink dress ." for each caption, or
    captions.txt                   the same as "image,caption", which may be a heading on top, too
    Flicker8k_Dataset/, Images/    the pictures, in one of these folders
    Flickr_8k.trainImages.txt      which pictures train, and likewise devImages and testImages

Without the last three files a hash of its name decides the split of a picture.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from qkv.config import shown
from qkv.data.captions import Captions, read_captioned
from qkv.data.files import digest, read_lines
from qkv.data.rows import csv_rows
from qkv.data.store import Store
from qkv.errors import InputError

TOKENS, TABLE = "Flickr8k.token.txt", "captions.txt"
HEADING = ["image", "caption"]  # of the table
PICTURES = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images", ".")
LISTS = {"train": "Flickr_8k.trainImages.txt", "valid": "Flickr_8k.devImages.txt", "test": "Flickr_8k.testImages.txt"}


def read(store: Store, side: int, size: int | None = None, features: Path | None = None) -> dict[str, Captions]:
    """The pictures of each split, scaled to so many pixels a side; of the training split the first `size`."""
    folder = _found(store)
    said: dict[str, list[str]] = {}
    for name, caption in _lines(folder):
        said.setdefault(name, []).append(caption)
    pictures = next(folder / name for name in PICTURES if (folder / name).is_dir())
    parts = _splits(folder, said)
    for split in ("train", "valid"):  # before any picture is read, which may take minutes
        if not parts[split][0]:
            raise InputError(f"{folder}: none of its pictures is for the split {split}")
    splits: dict[str, Captions] = {}
    for split, (names, notes) in parts.items():
        taken = names[:size] if split == "train" else names
        if taken:
            captions = read_captioned({name: said[name] for name in taken}, pictures, side, features)
            splits[split] = replace(captions, notes=notes)
    return splits


def _found(store: Store) -> Path:
    for folder in store.folders:
        for place in (folder, folder / "flickr8k"):
            if any((place / name).is_file() for name in (TOKENS, TABLE)):
                return place
    looked = ", ".join(str(folder) for folder in store.folders)
    raise InputError(
        f"flickr8k: neither {TOKENS} nor {TABLE} is in {looked}, or in a folder flickr8k there: name the folder of the "
        "pictures and captions with --data-dir FOLDER, or in a recipe with --set data.folder=FOLDER"
    )


def _lines(folder: Path) -> Iterator[tuple[str, str]]:
    if (folder / TOKENS).is_file():
        for number, line in enumerate(read_lines(folder / TOKENS), start=1):
            name, tab, caption = line.partition("\t")
            if not tab or not caption.strip():
                raise InputError(f"{folder / TOKENS}: line {number} is not a picture, a tab and a caption")
            yield name.partition("#")[0], caption.strip()
        return
    for number, row in csv_rows(read_lines(folder / TABLE), str(folder / TABLE)):
        if len(row) != 2 or not row[1].strip():
            raise InputError(f"{folder / TABLE}: line {number} is not a picture, a comma and a caption")
        name, caption = map(str.strip, row)
        if number > 1 or [name.lower(), caption.lower()] != HEADING:
            yield name, caption


def _splits(folder: Path, known: Collection[str]) -> dict[str, tuple[list[str], tuple[str, ...]]]:
    """The names of each split's pictures, and notes about names that were passed over."""
    lists = {split: folder / file for split, file in LISTS.items()}
    missing = [path.name for path in lists.values() if not path.is_file()]
    if len(missing) == len(lists):
        return {split: (names, ()) for split, names in _hashed(known).items()}
    if missing:
        raise InputError(f"{folder}: has a list of pictures, but no {' and no '.join(missing)}: give all three or none")
    found = {split: _listed(path, known) for split, path in lists.items()}
    list_of: dict[str, Path] = {}
    for split, (names, _) in found.items():
        for name in names:
            if name in list_of:
                raise InputError(f"{lists[split]}: {shown(name)} is in {list_of[name].name}, too: leave it in one")
        list_of |= dict.fromkeys(names, lists[split])
    return found


def _listed(path: Path, known: Collection[str]) -> tuple[list[str], tuple[str, ...]]:
    names: dict[str, None] = {}
    passed_over = []
    for name in filter(None, map(str.strip, read_lines(path))):
        if name in known and name not in names:
            names[name] = None
        else:
            passed_over.append(name)
    if not names:
        raise InputError(f"{path}: names no picture that has a caption")
    note = f"{path}: passed over {len(passed_over)} name(s) that are repeated or of no picture with a caption"
    return list(names), (f"{note}, the first {shown(passed_over[0])}",) if passed_over else ()


def _hashed(names: Collection[str]) -> dict[str, list[str]]:
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for name in names:
        number = int.from_bytes(digest(name)[:4], "big") % 10
        splits["test" if number == 0 else "valid" if number == 1 else "train"].append(name)
    return splits
