"""Folders of the user: their splits, and the files in them by suffix."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from qkv.datasets.formats.tables import TABLES
from qkv.errors import InputError
from qkv.runtime.text import printable

SPLIT_NAMES = {  # of files and subfolders, without suffix and in lower case
    "train": ("train", "training"),
    "valid": ("valid", "val", "validation", "dev"),
    "test": ("test", "testing"),
}
DATA_SUFFIXES = (*TABLES, ".json", ".txt", ".conll", ".conllu", ".gz", ".zst", ".parquet", ".arrow")
MAX_FILES = 10_000_000
METADATA = "metadata"  # name of the table of a folder that has several


def find_splits(folder: Path) -> dict[str, Path]:
    """Return the file or subfolder of each split of a folder; none if it has no split called train.

    Subfolders are splits only if all of them have names of splits: `train` may also be a class, next to `bus`.
    """
    found: dict[str, list[Path]] = {}
    others = False
    for entry in visible_entries(folder):
        name = entry.name.partition(".")[0].lower()
        split = next((split for split, names in SPLIT_NAMES.items() if name in names), None)
        if split is None:
            others = others or entry.is_dir()
        elif entry.is_dir() or entry.suffix.lower() in DATA_SUFFIXES:
            found.setdefault(split, []).append(entry)
    if "train" not in found or (others and any(path.is_dir() for path in found["train"])):
        return {}
    for split, paths in found.items():
        if len(paths) > 1:
            raise InputError(
                f"{folder}: has several files for the split {split}: {', '.join(path.name for path in paths[:5])}; "
                "pass the right ones with --data, --valid and --test"
            )
    return {split: found[split][0] for split in SPLIT_NAMES if split in found}


def visible_entries(folder: Path) -> list[Path]:
    """Return the files and subfolders of a folder, sorted, except hidden ones."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from None


def class_folders(folder: Path) -> list[Path]:
    """Return the subfolders of a folder; a link to a folder that contains it is an error."""
    folders = [path for path in visible_entries(folder) if path.is_dir()]
    for path in folders:
        if path.is_symlink() and folder.resolve().is_relative_to(path.resolve()):
            raise InputError(f"{path}: is a link to a folder that contains it: remove the link")
    return folders


def files_with_suffix(folder: Path, suffixes: Collection[str]) -> tuple[list[Path], list[Path]]:
    """Return the files below a folder with one of these suffixes, in any case, and the other files; both sorted.

    Hidden files are ignored. Links to folders are not followed: they are among the other files.
    """
    matching: list[Path] = []
    others: list[Path] = []
    for path in _walk(folder):
        (matching if path.suffix.lower() in suffixes else others).append(path)
        if len(matching) + len(others) > MAX_FILES:
            raise InputError(f"{folder}: more than {MAX_FILES:,} files")
    return sorted(matching), sorted(others)


def has_suffix(folder: Path, suffixes: Collection[str]) -> bool:
    """Return whether a file below a folder has one of these suffixes, in any case."""
    return any(path.suffix.lower() in suffixes for path in _walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}")

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (path for path in (Path(parent) / name for name in folders) if path.is_symlink())
        yield from (Path(parent) / name for name in sorted(names) if not name.startswith("."))


def find_table(folder: Path) -> Path | None:
    """Return the table of a folder: its only one, or that called metadata; None if it has none."""
    tables = [path for path in visible_entries(folder) if path.suffix.lower() in TABLES and not path.is_dir()]
    if len(tables) > 1:
        tables = [path for path in tables if path.stem.lower() == METADATA] or tables
    if len(tables) > 1:
        raise InputError(
            f"{folder}: has several tables, such as {tables[0].name} and {tables[1].name}: pass one of them"
        )
    return tables[0] if tables else None


def file_of_row(folder: Path, name: str, other: str, where: str) -> Path:
    """Return the file that a row names, relative to the folder of its table; `other` is the other cell of the row."""
    try:
        path = folder / name
        if os.path.lexists(path):
            return path
        swapped = len(other) < 256 and (folder / other).is_file()
    except (OSError, ValueError):  # too long for a path, or with a NUL character
        swapped = False
    hint = "; are the columns swapped?" if swapped else ""
    raise InputError(f"{where}: {printable(name, 80)}: no such file in {folder}{hint}")
