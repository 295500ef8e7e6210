"""What differs between operating systems: flags of open files, file locks, processors.

qkv is developed and tested on Linux. Elsewhere the flags that an operating system lacks are left out, files are locked
by `msvcrt` on Windows, and the number of processors is that of the machine.
"""

import io
import os

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Without O_BINARY, Windows would convert line endings.
READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def lock(file: io.BufferedWriter, *, wait: bool) -> None:
    """Lock an open file until it is closed; raise BlockingIOError if another process has locked it, or wait."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    mode = msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK
    file.seek(0)
    while True:
        try:
            msvcrt.locking(file.fileno(), mode, 1)
            return
        except OSError:
            if not wait:  # LK_LOCK gives up after ten seconds
                raise BlockingIOError("locked by another process") from None


def sync(path: str | os.PathLike[str]) -> None:
    """Flush a file or directory to disk; Windows cannot open directories."""
    if os.name == "nt" and os.path.isdir(path):
        return
    # Windows flushes only files that are open for writing.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_writable(folder: str | os.PathLike[str]) -> bool:
    """Return whether files can be created in a folder."""
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def cpu_count() -> int:
    """Return the number of CPUs that this process can use, or that the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
