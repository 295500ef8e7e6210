"""Run the command line in processes forked from one that has imported everything, which saves seconds per start."""

import atexit
import ctypes
import importlib
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 20.0  # that a command may take
MEMORY = 2 << 30  # bytes of resident memory that it may take
IMPORTED = 256 << 20  # bytes of it for Python, torch and the package, which a forked child shares with its parent
ADDRESSES = 8 << 30  # bytes of address space, in case memory grows faster than it is polled
INTERRUPT_AFTER = 4.0  # seconds until a command that trains gets SIGINT: a recipe may ask for any number of steps
PAGE = os.sysconf("SC_PAGE_SIZE")


def warm() -> None:
    """Import the package and its lazy imports once, before any fork."""
    import torch

    import qkv

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(qkv.__path__, "qkv."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):  # an optional dependency
                importlib.import_module(module.name)
    import_all(["torch.utils.tensorboard", "matplotlib.font_manager"])  # the latter writes a list of fonts once


def import_all(names: Sequence[str]) -> None:
    """Import the modules that a child had to import."""
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


@dataclass
class Ended:
    """How a child ended."""

    code: int  # negative: the signal that ended it
    seconds: float
    memory: int
    stopped: str = ""  # why it was killed


@dataclass
class Child:
    """A running process, killed when it exceeds the limits of time or memory."""

    pid: int
    errors: Path  # what it writes to stderr
    may_train: bool = False
    seconds: float = SECONDS
    began: float = field(default_factory=time.monotonic)
    inherited: int = 0  # bytes of memory that it shared with its parent when it began
    interrupted: float = 0.0
    stopped: str = ""

    def poll(self) -> Ended | None:
        """How the process ended, or None while it runs."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid:
            _kill_group(self.pid)  # what it may have started
            memory = IMPORTED + max(0, usage.ru_maxrss * 1024 - self.inherited)
            seconds = time.monotonic() - self.began - self._waited_for_others
            return Ended(os.waitstatus_to_exitcode(status), seconds, memory, self.stopped)
        self._watch()
        return None

    def wait(self) -> Ended:
        while (ended := self.poll()) is None:
            time.sleep(0.005)
        return ended

    _waited_for_others: float = 0.0  # seconds in which other processes had the CPU

    def _watch(self) -> None:
        with suppress(OSError, IndexError, ValueError):
            self._waited_for_others = int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9
        elapsed = time.monotonic() - self.began - self._waited_for_others
        if self.may_train and not self.interrupted and elapsed > INTERRUPT_AFTER and self._trains():
            self.interrupted = elapsed
            os.kill(self.pid, signal.SIGINT)
        if elapsed > self.seconds + self.interrupted:
            self._stop(f"still running after {elapsed:.0f} s")
        elif (grown := IMPORTED + _resident(self.pid) - self.inherited) > MEMORY + (256 << 20):
            self._stop(f"killed at {grown / 2**30:.1f} GiB")

    def _trains(self) -> bool:
        return b"epoch " in self.errors.read_bytes()

    def _stop(self, why: str) -> None:
        if not self.stopped:
            self.stopped = why
            _kill_group(self.pid)


def start(
    work: Callable[[], int],
    *,
    output: Path,
    environment: Mapping[str, str] | None = None,
    working: Path | None = None,
    may_train: bool = False,
    seconds: float = SECONDS,
) -> Child:
    """Fork; the child calls `work` and exits with what it returns. It writes to output.stdout and output.stderr."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Child(pid, Path(f"{output}.stderr"), may_train, seconds, inherited=_resident(pid))
    try:
        _prepare_child(output, environment or {}, working)
        code = _exit_code(work)
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)
    finally:
        os._exit(70)


def command(arguments: Sequence[str]) -> Callable[[], int]:
    """The command line itself."""

    def work() -> int:
        from qkv.cli.main import main

        sys.argv = ["qkv", *arguments]
        main()
        return 0

    return work


def _exit_code(work: Callable[[], int]) -> int:
    try:
        return work()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


def _prepare_child(output: Path, environment: Mapping[str, str], working: Path | None) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    files = [(0, "/dev/null", os.O_RDONLY)]
    files += [(1, f"{output}.stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)]
    files += [(2, f"{output}.stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)]
    for number, path, flags in files:
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.update(environment)
    tempfile.tempdir = None
    if working is not None:
        os.chdir(working)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    for limit, most in (
        (resource.RLIMIT_AS, used + ADDRESSES),
        (resource.RLIMIT_CPU, int(3 * SECONDS)),
        (resource.RLIMIT_FSIZE, 1 << 30),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, resource.getrlimit(limit)[1]))
    _obey_permissions()


def _obey_permissions() -> None:
    """Give up root's right to read and write what its permissions forbid."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) == 0:
        sets[0] &= ~0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
        libc.capset(header, sets)


def _resident(pid: int | str) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
