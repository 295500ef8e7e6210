"""File access: only regular files are read, writes are atomic, and nothing is written through a symbolic link."""

import fcntl
import hashlib
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import InputError

WRITING = ".writing-"  # the prefix of what is not whole yet, or no longer wanted
LOCK = ".lock"
OLD = f"{WRITING}old-"  # the prefix of what is whole, and set aside while the new one takes its place


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file, or a link to one, for reading; anything else is an input error.

    A FIFO or a device has no size that could be checked, and reading it can block or never end.
    """
    try:
        _require_regular(path, path.stat().st_mode)  # before open, which has side effects on some devices
        # O_NONBLOCK: the path may have become a FIFO since.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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
        if max_bytes is not None and os.fstat(file.fileno()).st_size > max_bytes:
            raise InputError(f"{path}: larger than {_size(max_bytes)}")
        try:
            data = file.read() if max_bytes is None else file.read(max_bytes + 1)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if max_bytes is not None and len(data) > max_bytes:  # it has grown since
        raise InputError(f"{path}: larger than {_size(max_bytes)}")
    return data


def expand_home(path: str | Path) -> Path:
    """The path with a leading ~ or ~user replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # no such user
        raise InputError(f"{path}: {error}") from None


def absolute_path(path: str | Path) -> Path:
    """The absolute path with ~ expanded; links are kept, for one may be broken or a pipe of the shell."""
    if "\0" in str(path):
        raise InputError(f"{str(path)!r}: not a path (it has a NUL character)")
    return expand_home(path).absolute()


def create_folder(path: Path) -> None:
    """Create a folder and its parents where they are missing, however many there are."""
    missing = []
    while not path.is_dir():  # Path.mkdir(parents=True) would call itself once for each parent
        missing.append(path)
        if path == path.parent:
            break
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)


def check_output_file(path: Path) -> None:
    """Raise unless `path` is free or a regular file, which would be replaced."""
    mode = _lstat_mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        raise InputError(f"{path}: is {file_kind(mode)}; choose the name of a new or regular file")
    _check_writable(path)


def check_output_folder(path: Path, ignore: Callable[[str], bool] = lambda name: False) -> None:
    """Raise unless `path` is free or an empty folder; a link to an empty folder is refused too.

    A folder also counts as empty if `ignore` holds for the names of all files in it.
    """
    mode = _lstat_mode(path)
    if mode is not None and not stat.S_ISDIR(mode):
        raise InputError(f"{path}: is {file_kind(mode)}; choose the name of a new or empty folder")
    if mode is not None and not all(ignore(name) for name in os.listdir(path)):
        raise InputError(f"{path}: is not empty; choose the name of a new or empty folder")
    _check_writable(path)


def open_in_folder(path: Path) -> io.BufferedWriter:
    """Open a file for appending, which must not be a link, a FIFO or a device.

    For the files that a run keeps up to date in its folder: the folder may come from someone else.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with naming_output(path):
        check_output_file(path)
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            _require_regular(path, os.fstat(descriptor).st_mode)
            return io.BufferedWriter(io.FileIO(descriptor, "ab"))
        except BaseException:
            os.close(descriptor)
            raise


def file_kind(mode: int) -> str:
    """Name the type of a file by its mode, for messages."""
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
    """Write a file so that a reader sees the old one or the whole new one, also after a power cut."""
    with naming_output(path):
        check_output_file(path)
        create_folder(path.parent)
        scratch = _scratch(path)
        _remove(scratch)
        try:
            with scratch.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
        _sync(path.parent)


@contextmanager
def folder_written_atomically(path: Path) -> Iterator[Path]:
    """Give a scratch folder to fill; on leaving, all of it becomes `path` at once (an older folder is replaced).

    A process that is killed between taking the old folder away and putting the new one there leaves the old one set
    aside: `remove_leftovers`, and the next writer, put it back.
    """
    with naming_output(path):
        mode = _lstat_mode(path)
        if mode is not None and not stat.S_ISDIR(mode) and not (path.is_symlink() and path.is_dir()):
            raise InputError(f"{path}: is {file_kind(mode)}; choose the name of a new or empty folder")
        create_folder(path.parent)
        scratch = _scratch(path)
        _remove(scratch)
        scratch.mkdir()
        readable = scratch.stat().st_mode & 0o666
        try:
            yield scratch
            for file in scratch.iterdir():
                file.chmod(readable)  # safetensors would keep its files from everyone but their owner
                _sync(file)
            _sync(scratch)
            _put_back(_old(path))
            if os.path.lexists(path):
                os.rename(path, _old(path))
            os.rename(scratch, path)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            _put_back(_old(path))
            raise
        _sync(path.parent)
        remove_folder(_old(path))


def remove_folder(path: Path) -> None:
    """Remove a folder, if it is there, so that a half-removed one is never taken for a whole one.

    Of a link to a folder, the link is removed.
    """
    doomed = path.with_name(f"{WRITING}removed-{path.name}")
    _remove(doomed)
    if os.path.lexists(path):
        os.rename(path, doomed)
        _remove(doomed)


def is_leftover(name: str) -> bool:
    """Whether a file in a folder of ours has a name that a killed process can leave behind."""
    return name == LOCK or name.startswith(WRITING)


def remove_leftovers(folder: Path) -> None:
    """Remove what an interrupted writer left in `folder`."""
    for old in folder.glob(f"{OLD}*"):
        _put_back(old)
    for path in folder.glob(f"{WRITING}*"):
        _remove(path)


@contextmanager
def only_one_process(folder: Path) -> Iterator[None]:
    """Raise if another process is inside this block for the same folder; one that dies leaves it free again."""
    with open_in_folder(folder / LOCK) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: in use by another process") from None
        yield


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _scratch(path: Path) -> Path:
    """Where `path` is written before it is whole; each process has its own, so that two cannot mix theirs."""
    return path.with_name(f"{WRITING}{os.getpid()}-{path.name}")


def _old(path: Path) -> Path:
    return path.with_name(f"{OLD}{path.name}")


def _put_back(old: Path) -> None:
    """Give what was set aside its name again, unless the new one has it."""
    path = old.with_name(old.name.removeprefix(OLD))
    if not os.path.lexists(old):
        return
    if os.path.lexists(path):
        remove_folder(old)
    else:
        os.rename(old, path)


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder; never what a link points at."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)


def _lstat_mode(path: Path) -> int | None:
    """The mode of what is at `path`, links not followed; None where there is nothing."""
    with naming_output(path):
        try:
            return path.lstat().st_mode
        except FileNotFoundError:
            return None


def _check_writable(path: Path) -> None:
    """Raise unless files can be created in the nearest folder above `path` that exists."""
    parent = path.parent
    while not os.path.lexists(parent) and parent != parent.parent:
        parent = parent.parent
    if parent.is_dir() and not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        raise InputError(f"{path}: cannot be written: {parent} is read-only")


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: is {file_kind(mode)}, not a regular file")


def _size(count: int) -> str:
    return f"{count // 2**20} MiB" if count >= 2**20 else f"{count} bytes"


@contextmanager
def naming_output(path: Path) -> Iterator[None]:
    """Turn an OSError into an input error that names `path`, rather than a temporary file."""
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
