"""Files that are either whole or absent, whatever interrupts the writing."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WRITING = ".writing-"  # the prefix of what is not whole yet


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the whole new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{WRITING}{path.name}")
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    _sync(path.parent)


@contextmanager
def folder_written_atomically(path: Path) -> Iterator[Path]:
    """Give a scratch folder to fill; on leaving, all of it becomes `path` at once (an older `path` is replaced)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{WRITING}{path.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
        for file in scratch.iterdir():
            _sync(file)
        _sync(scratch)
        with _set_aside(path):
            os.rename(scratch, path)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _sync(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder so that a half-removed one is never taken for a whole one."""
    with _set_aside(path):
        pass


@contextmanager
def _set_aside(path: Path) -> Iterator[None]:
    """Rename `path` (if it is there) out of the way, and delete it once the block has taken its place."""
    doomed = path.with_name(f"{WRITING}removed-{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    if path.exists():
        os.rename(path, doomed)
    yield
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Clear away what an interrupted writer left in `folder`."""
    for path in folder.glob(f"{WRITING}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Make the kernel put a file, or a folder's list of names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
