"""The switch between faster versions of operations and the plain versions that they must equal."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_enabled = os.environ.get("QKV_FAST", "1") != "0"


def enabled() -> bool:
    """Return whether the faster versions are used."""
    return _enabled


@contextmanager
def disabled() -> Iterator[None]:
    """Use the plain versions inside a `with` block."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before
