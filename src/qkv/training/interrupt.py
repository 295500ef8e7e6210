"""Ctrl-C as a request: finish the step, save, then stop."""

import signal
from types import FrameType, TracebackType


class Interrupt:
    """True once the user (SIGINT) or the system (SIGTERM) asked to stop; a second request stops at once."""

    def __init__(self) -> None:
        self._asked = False

    def __bool__(self) -> bool:
        return self._asked

    def __enter__(self) -> "Interrupt":
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
