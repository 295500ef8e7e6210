"""Silence native libraries that write directly to stderr."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_STDERR = 2
_lock = threading.Lock()
_users = 0  # active blocks in all threads; descriptor 2 is shared by the process
_saved: int | None = None  # the real stderr, while descriptor 2 is redirected


@contextmanager
def silence_native_stderr() -> Iterator[None]:
    """Discard everything written to file descriptor 2, such as Rust panics or libtiff warnings.

    Blocks may be nested and may overlap in several threads: the first redirects, the last restores.
    """
    _redirect()
    try:
        yield
    finally:
        _restore()


def reserve_standard_descriptors() -> None:
    """Open /dev/null on closed descriptors 0, 1 and 2, so that no file is opened with these numbers."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= _STDERR:
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)


def _redirect() -> None:
    global _users, _saved
    with _lock:
        _users += 1
        if _users > 1:
            return
        with suppress(OSError, ValueError, AttributeError):  # no stderr, or a closed one
            sys.stderr.flush()
        with suppress(OSError):  # descriptor 2 is closed: there is nothing to silence
            _saved = os.dup(_STDERR)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, _STDERR)
            os.close(null)


def _restore() -> None:
    global _users, _saved
    with _lock:
        _users -= 1
        if _users == 0 and _saved is not None:
            os.dup2(_saved, _STDERR)
            os.close(_saved)
            _saved = None
