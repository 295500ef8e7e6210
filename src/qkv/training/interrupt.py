"""Ctrl-C as a request: finish the step, save, then stop."""

import signal
from types import FrameType, TracebackType


class Interrupt:
    """True once SIGINT or SIGTERM was received; a second signal raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._requested = False

    def __bool__(self) -> bool:
        return self._requested

    def __enter__(self) -> "Interrupt":
        self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
