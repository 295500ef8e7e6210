"""Worker processes that end with the process that started them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


class ProcessPool(ProcessPoolExecutor):
    """A pool of new processes, each of which begins with `initialize(*arguments)`."""

    def __init__(self, count: int, initialize: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use the threads of torch
        self._others = {*multiprocessing.active_children()}
        super().__init__(count, context, _start, (initialize, arguments))

    def __exit__(self, *error: object) -> None:
        self.terminate()

    def terminate(self) -> None:
        """End the processes, which may be in the middle of their work."""
        for process in {*multiprocessing.active_children()} - self._others:
            process.terminate()
        self.shutdown(cancel_futures=True)


def _start(initialize: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    initialize(*arguments)


def end_with_parent() -> None:
    """End this process when its parent ends; the target of a daemon thread."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
