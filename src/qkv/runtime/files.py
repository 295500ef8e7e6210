"""Files that are either whole or absent, whatever interrupts the writing."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import InputError

WRITING = ".writing-"  # the prefix of what is not whole yet, or no longer wanted
OLD = f"{WRITING}old-"  # the prefix of what is whole, and set aside while the new one takes its place


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the whole new one, also after a power cut."""
    with _naming(path):
        target = path.resolve()  # what a link points at is written, and the link stays
        if target.exists() and not target.is_file():
            raise InputError(f"{path}: is a folder or a device, not a file to write to")
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = _scratch(target)
        try:
            with scratch.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, target)
        finally:
            scratch.unlink(missing_ok=True)
        _sync(target.parent)


@contextmanager
def folder_written_atomically(path: Path) -> Iterator[Path]:
    """Give a scratch folder to fill; on leaving, all of it becomes `path` at once (an older `path` is replaced).

    A process that is killed between taking the old folder away and putting the new one there leaves the old one set
    aside: `remove_leftovers`, and the next writer, put it back.
    """
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = _scratch(path)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        readable = scratch.stat().st_mode & 0o666
        try:
            yield scratch
            for file in scratch.iterdir():
                file.chmod(readable)  # safetensors would keep its files from everyone but their owner
                _sync(file)
            _sync(scratch)
            _put_back(_old(path))
            if path.exists():
                os.rename(path, _old(path))
            os.rename(scratch, path)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            _put_back(_old(path))
            raise
        _sync(path.parent)
        remove_folder(_old(path))


def remove_folder(path: Path) -> None:
    """Remove a folder, if it is there, so that a half-removed one is never taken for a whole one."""
    doomed = path.with_name(f"{WRITING}removed-{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    if path.exists():
        os.rename(path, doomed)
        shutil.rmtree(doomed)


def remove_leftovers(folder: Path) -> None:
    """Clear away what an interrupted writer left in `folder`."""
    for old in folder.glob(f"{OLD}*"):
        _put_back(old)
    for path in folder.glob(f"{WRITING}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def only_one_process(folder: Path) -> Iterator[None]:
    """Raise if another process is inside this block for the same folder; one that dies leaves it free again."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another process is at work there") from None
        yield


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _scratch(path: Path) -> Path:
    """Where `path` is written before it is whole; each process has its own, so that two cannot mix theirs."""
    return path.with_name(f"{WRITING}{os.getpid()}-{path.name}")


def _old(path: Path) -> Path:
    return path.with_name(f"{OLD}{path.name}")


def _put_back(old: Path) -> None:
    """Give what was set aside its name again, unless the new one has it."""
    path = old.with_name(old.name.removeprefix(OLD))
    if not old.exists():
        return
    if path.exists():
        remove_folder(old)
    else:
        os.rename(old, path)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say which file or folder it was that could not be written, rather than which scratch file."""
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{path}: cannot be written: a part of its path is a file, not a folder") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _sync(path: Path) -> None:
    """Make the kernel put a file, or a folder's list of names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
