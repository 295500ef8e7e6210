"""Limits and counts of what a block of code uses, for tests of complexity and of malformed input.

None of them is a wall-clock time, which depends on what else the machine does.
"""

import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

STATM = Path("/proc/self/statm")


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Fail if the block uses more CPU time than this; set it far above the usual time and far below a hang."""

    def fail(*_: object) -> None:
        pytest.fail(f"used more than {seconds} s of CPU time")

    previous = signal.signal(signal.SIGPROF, fail)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


@contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """Let allocations fail that exceed the address space used now by this number of bytes."""
    if not STATM.exists():
        pytest.skip("the memory of a process is counted on Linux only")
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(STATM.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def count_calls(function: Callable[[], object]) -> int:
    """Return the number of Python and C functions that a call executes."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(previous)
    return calls
