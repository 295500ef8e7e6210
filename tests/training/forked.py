"""Training in forked processes, which start in milliseconds and can be killed."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

OK, FAILED = 0, 1
POLL = 0.0002  # seconds


def fork(function: Callable[[], object], messages: Path) -> int:
    """Call a function in a new process; its messages, and its error if it raises one, are appended to a file."""
    pid = os.fork()
    if pid:
        return pid
    code = FAILED
    try:
        output = os.open(messages, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(output, "w", buffering=1, encoding="utf-8")  # pytest has replaced them
        function()
        code = OK
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def wait(pid: int) -> int:
    """Wait for a process; return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_until(pid: int, condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return False if the process ended before."""
    while not condition():
        ended, _ = os.waitpid(pid, os.WNOHANG)
        if ended:
            return False
        time.sleep(POLL)
    return True


def kill_when(pid: int, condition: Callable[[], bool]) -> bool:
    """Kill a process once a condition holds; return False if it ended before."""
    if not wait_until(pid, condition):
        return False
    os.kill(pid, signal.SIGKILL)
    return wait(pid) == -signal.SIGKILL
