"""File access: only regular files are read, writes are atomic, and nothing is written through a symbolic link."""

import hashlib
import io
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import InputError
from qkv.runtime import portable

RUNS = Path("runs")  # default folder of training runs
WRITING = ".writing-"  # prefix of incomplete or obsolete files
LOCK = ".lock"
SAMPLED_BLOCKS, SAMPLED_BLOCK_BYTES = 256, 4096  # of a large file, in `sampled_sha256`
OLD = f"{WRITING}old-"  # prefix of a complete folder while it is being replaced


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file, or a link to one, for reading; anything else is an input error.

    A FIFO or a device has no size that could be checked, and reading it can block or never end.
    """
    try:
        _require_regular(path, path.stat().st_mode)  # before open, which has side effects on some devices
        # O_NONBLOCK: the path may have become a FIFO since.
        descriptor = os.open(path, portable.READ)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL character
        raise InputError(f"{str(path)!r}: not the name of a file") from None
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
        return io.BufferedReader(io.FileIO(descriptor, "rb"))
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, max_bytes: int | None = None) -> bytes:
    """Read a regular file of at most `max_bytes` bytes."""
    with open_regular(path) as file:
        try:
            data = file.read() if max_bytes is None else file.read(max_bytes + 1)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if max_bytes is not None and len(data) > max_bytes:
        raise InputError(f"{path}: larger than {_size(max_bytes)}")
    return data


def expand_home(path: str | Path) -> Path:
    """Return the path with a leading ~ or ~user expanded."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # no such user
        raise InputError(f"{path}: {error}") from None


def absolute_path(path: str | Path) -> Path:
    """Return the absolute path with ~ expanded; links are not resolved, as they may be broken or shell pipes."""
    if "\0" in str(path):
        raise InputError(f"{str(path)!r}: not a path (contains a NUL character)")
    return expand_home(path).absolute()


def cache_root() -> Path:
    """Return the folder of the user's cache of qkv: XDG_CACHE_HOME/qkv, or ~/.cache/qkv."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv"


def check_output_file(path: Path) -> None:
    """Raise unless `path` does not exist or is a regular file (to be replaced)."""
    mode = _lstat_mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        raise InputError(f"{path}: is {file_kind(mode)}; choose a new or regular file")
    _check_writable(path)


def check_output_folder(path: Path, ignore: Callable[[str], bool] = lambda name: False) -> None:
    """Raise unless `path` does not exist or is an empty folder (not a link to one).

    Files for which `ignore(name)` is true do not count.
    """
    mode = _lstat_mode(path)
    if mode is not None and not stat.S_ISDIR(mode):
        raise InputError(f"{path}: is {file_kind(mode)}; choose a new or empty folder")
    if mode is not None and not all(ignore(name) for name in os.listdir(path)):
        raise InputError(f"{path}: is not empty; choose a new or empty folder")
    _check_writable(path)


def open_for_append(path: Path) -> io.BufferedWriter:
    """Open a file for appending; raise if it is a link, a FIFO or a device.

    Used for log files in run folders, which may come from an untrusted source.
    """
    with name_output_errors(path):
        check_output_file(path)
        descriptor = os.open(path, portable.APPEND | portable.NO_FOLLOW, 0o666)
        try:
            _require_regular(path, os.fstat(descriptor).st_mode)
            return io.BufferedWriter(io.FileIO(descriptor, "ab"))
        except BaseException:
            os.close(descriptor)
            raise


def file_kind(mode: int) -> str:
    """Describe the file type of a mode, for messages."""
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "not a regular file")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically and durably: readers see the old or the complete new contents."""
    with name_output_errors(path):
        check_output_file(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_file(path) as file:
            file.write(data)
        portable.sync(path.parent)


@contextmanager
def scratch_file(path: Path) -> Iterator[io.BufferedRandom]:
    """Yield a new file that atomically becomes `path` on exit."""
    scratch = _scratch(path)
    _remove(scratch)
    try:
        with scratch.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a scratch folder that atomically becomes `path` on exit, replacing an existing folder.

    If the process is killed between the two renames, the old folder remains under its temporary name;
    `remove_leftovers` or the next writer restores it.
    """
    with name_output_errors(path):
        mode = _lstat_mode(path)
        if mode is not None and not stat.S_ISDIR(mode) and not (path.is_symlink() and path.is_dir()):
            raise InputError(f"{path}: is {file_kind(mode)}; choose a new or empty folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = _scratch(path)
        _remove(scratch)
        scratch.mkdir()
        readable = scratch.stat().st_mode & 0o666
        try:
            yield scratch
            for file in scratch.iterdir():
                if file.is_file():
                    file.chmod(readable)  # safetensors creates files readable only by their owner
                portable.sync(file)
            portable.sync(scratch)
            _put_back(_old(path))
            if os.path.lexists(path):
                os.rename(path, _old(path))
            os.rename(scratch, path)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            _put_back(_old(path))
            raise
        portable.sync(path.parent)
        remove_folder(_old(path))


def remove_folder(path: Path) -> None:
    """Remove a folder if it exists, renaming it first so that a partially removed one is never used.

    If `path` is a link, only the link is removed.
    """
    trash = path.with_name(f"{WRITING}removed-{path.name}")
    _remove(trash)
    try:
        os.rename(path, trash)
    except FileNotFoundError:  # also if another process removes it meanwhile
        return
    _remove(trash)


def is_leftover(name: str) -> bool:
    """Return whether a file name is that of a lock or of temporary data left by a killed process."""
    return name == LOCK or name.startswith(WRITING)


def remove_leftovers(folder: Path) -> None:
    """Remove or restore the temporary data of interrupted writers in `folder`."""
    for old in folder.glob(f"{OLD}*"):
        _put_back(old)
    for path in folder.glob(f"{WRITING}*"):
        _remove(path)


def remove_scratch(path: Path) -> None:
    """Remove the temporary files of killed processes that were writing `path`; the caller has the right to write it."""
    pattern = re.compile(rf"{re.escape(WRITING)}\d+-{re.escape(path.name)}")
    for other in path.parent.iterdir():
        if pattern.fullmatch(other.name):
            _remove(other)


@contextmanager
def exclusive_lock(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a folder; if another process holds it, raise or wait. A dead process releases it."""
    with open_for_append(folder / LOCK) as lock:
        lock_file(lock, folder, wait=wait)
        yield


def lock_file(file: io.BufferedWriter, path: Path, *, wait: bool = False) -> None:
    """Lock an open file until it is closed; if another process has locked it, raise with the name `path`, or wait."""
    try:
        portable.lock(file, wait=wait)
    except BlockingIOError:
        raise InputError(f"{path}: in use by another process") from None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as a hex string."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sampled_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's size and, if it is large, of blocks spread over it and its beginning."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(f"{size}\0".encode())
        digest.update(file.read(SAMPLED_BLOCKS * SAMPLED_BLOCK_BYTES))
        for block in range(SAMPLED_BLOCKS if size > file.tell() else 0):
            file.seek(block * (size - SAMPLED_BLOCK_BYTES) // (SAMPLED_BLOCKS - 1))
            digest.update(file.read(SAMPLED_BLOCK_BYTES))
        return digest.hexdigest()


def _scratch(path: Path) -> Path:
    """Return the temporary path for writing `path`, unique per process."""
    return path.with_name(f"{WRITING}{os.getpid()}-{path.name}")


def _old(path: Path) -> Path:
    return path.with_name(f"{OLD}{path.name}")


def _put_back(old: Path) -> None:
    """Restore a replaced folder unless the new one exists."""
    path = old.with_name(old.name.removeprefix(OLD))
    if not os.path.lexists(old):
        return
    if os.path.lexists(path):
        remove_folder(old)
    else:
        os.rename(old, path)


def _remove(path: Path) -> None:
    """Remove a file, link or folder without following links."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)


def _lstat_mode(path: Path) -> int | None:
    """Return the mode of `path` without following links, or None if it does not exist."""
    with name_output_errors(path):
        try:
            return path.lstat().st_mode
        except FileNotFoundError:
            return None


def _check_writable(path: Path) -> None:
    """Raise unless files can be created in the nearest folder above `path` that exists."""
    parent = path.parent
    while not os.path.lexists(parent) and parent != parent.parent:
        parent = parent.parent
    if parent.is_dir() and not portable.is_writable(parent):
        raise InputError(f"{path}: cannot be written: {parent} is read-only")


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: is {file_kind(mode)}, not a regular file")


def _size(count: int) -> str:
    return f"{count // 2**20} MiB" if count >= 2**20 else f"{count} bytes"


@contextmanager
def name_output_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into an InputError that names `path` instead of a temporary file."""
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{path}: cannot be written: a parent is a file, not a folder") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
