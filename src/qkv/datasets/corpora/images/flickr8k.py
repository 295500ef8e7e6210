"""Flickr8k (Hodosh, Young and Hockenmaier 2013), or a folder in the same format.

    Flickr8k.token.txt             a line "1000268201.jpg#0 <tab> A child in a pink dress ." for each caption, or
    captions.txt                   lines "image,caption", with an optional header
    Flicker8k_Dataset/, Images/    the images, in one of these folders
    Flickr_8k.trainImages.txt      the images of the training split, likewise devImages and testImages

Without the last three files, images are split by a hash of their names. Alternatively, in archives of a split each:

    captions.tsv                   image, split and five captions in tab-separated columns, after a line of their names
    train.tar, dev.tar, test.tar   the images
"""

from collections.abc import Collection, Iterator
from pathlib import Path

from qkv.datasets.columns import BLEU_1_TO_4
from qkv.datasets.dataset import CaptionFolderConfig
from qkv.datasets.examples.captions import CaptionFiles
from qkv.datasets.formats.tables import csv_rows
from qkv.datasets.formats.text_files import read_lines, split_of
from qkv.errors import InputError
from qkv.registry import register
from qkv.runtime.text import printable

TOKENS, TABLE, ARCHIVED = "Flickr8k.token.txt", "captions.txt", "captions.tsv"
HEADER = ["image", "caption"]  # of captions.txt
IMAGE_FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images", ".")
LISTS = {"train": "Flickr_8k.trainImages.txt", "valid": "Flickr_8k.devImages.txt", "test": "Flickr_8k.testImages.txt"}

SPLIT_NAMES = {"train": "train", "dev": "valid", "test": "test"}  # in captions.tsv, and ours
ARCHIVES = {split: f"{name}.tar" for name, split in SPLIT_NAMES.items()}


@register("dataset", "flickr8k")
class Flickr8k(CaptionFolderConfig):
    """A copy of Flickr8k, or a folder in its format."""

    summary = "your copy of Flickr8k, or captioned images in its format (data.folder)"
    columns = BLEU_1_TO_4

    def read_files(self) -> tuple[dict[str, CaptionFiles], tuple[str, ...]]:
        folder = self.find_folder(TOKENS, TABLE, ARCHIVED)
        if (folder / ARCHIVED).is_file():
            return _archived(folder / ARCHIVED), ()
        captions: dict[str, list[str]] = {}
        for name, caption in _lines(folder):
            captions.setdefault(name, []).append(caption)
        images = next(folder / name for name in IMAGE_FOLDERS if (folder / name).is_dir())
        notes: list[str] = []
        names_of = _splits(folder, captions, notes)
        for split in ("train", "valid"):
            if not names_of[split]:
                raise InputError(f"{folder}: there are no images for the split {split}")
        files = {
            split: CaptionFiles({name: captions[name] for name in names}, images)
            for split, names in names_of.items()
            if names
        }
        return files, tuple(notes)


def _archived(path: Path) -> dict[str, CaptionFiles]:
    """Read captions.tsv: the captions of each split, whose images are in an archive."""
    texts: dict[str, dict[str, list[str]]] = {split: {} for split in ARCHIVES}
    names: set[str] = set()
    for number, line in enumerate(read_lines(path), start=1):
        name, split, *captions = (cell.strip() for cell in f"{line}\t".split("\t"))
        if number == 1 and (name, split) == ("image", "split"):
            continue
        captions = list(filter(None, captions))
        if split not in SPLIT_NAMES or not name or not captions:
            raise InputError(f"{path}: line {number} must have an image name, train, dev or test, and captions")
        if name in names:
            raise InputError(f"{path}: line {number}: {printable(name, 80)} is in the file more than once")
        names.add(name)
        texts[SPLIT_NAMES[split]][name] = captions
    for split in ("train", "valid"):
        if not texts[split]:
            raise InputError(f"{path}: there are no images for the split {split}")
    return {split: CaptionFiles(of, path.with_name(ARCHIVES[split])) for split, of in texts.items() if of}


def _lines(folder: Path) -> Iterator[tuple[str, str]]:
    if (folder / TOKENS).is_file():
        for number, line in enumerate(read_lines(folder / TOKENS), start=1):
            name, tab, caption = line.partition("\t")
            if not tab or not caption.strip():
                raise InputError(f"{folder / TOKENS}: line {number} must have an image name, a tab and a caption")
            yield name.partition("#")[0], caption.strip()
        return
    for number, row in csv_rows(read_lines(folder / TABLE), str(folder / TABLE)):
        if len(row) != 2 or not row[1].strip():
            raise InputError(f"{folder / TABLE}: line {number} must have an image name, a comma and a caption")
        name, caption = map(str.strip, row)
        if number > 1 or [name.lower(), caption.lower()] != HEADER:
            yield name, caption


def _splits(folder: Path, captioned: Collection[str], notes: list[str]) -> dict[str, list[str]]:
    """Return the image names of each split; notes about skipped names are appended to `notes`."""
    lists = {split: folder / file for split, file in LISTS.items()}
    missing = [path.name for path in lists.values() if not path.is_file()]
    if len(missing) == len(lists):
        return {split: [name for name in captioned if split_of(name) == split] for split in lists}
    if missing:
        raise InputError(f"{folder}: {' and '.join(missing)} missing: all three lists of images are needed, or none")
    splits = {split: _read_list(path, captioned, notes) for split, path in lists.items()}
    list_of: dict[str, Path] = {}
    for split, names in splits.items():
        for name in names:
            if name in list_of:
                raise InputError(
                    f"{lists[split]}: {printable(name)} is also in {list_of[name].name}: remove it from one of them"
                )
        list_of |= dict.fromkeys(names, lists[split])
    return splits


def _read_list(path: Path, captioned: Collection[str], notes: list[str]) -> list[str]:
    names: dict[str, None] = {}
    skipped = []
    for name in filter(None, map(str.strip, read_lines(path))):
        if name in captioned and name not in names:
            names[name] = None
        else:
            skipped.append(name)
    if not names:
        raise InputError(f"{path}: none of its images has a caption")
    if skipped:
        notes.append(
            f"{path}: skipped {len(skipped)} name(s) that are repeated or of an image without caption, the first "
            f"{printable(skipped[0])}"
        )
    return list(names)
