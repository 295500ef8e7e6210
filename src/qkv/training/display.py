"""Training progress on stderr: a live line on a terminal, a line every few seconds elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from qkv.metrics import Metric
from qkv.runtime.bars import BAR_WIDTH, live_progress, print_message
from qkv.runtime.text import message_line
from qkv.training.run import Best

SECONDS_BETWEEN_LINES = 10.0


class Display:
    """Shows the progress of training on stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._live = live_progress(
            self.console,
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=BAR_WIDTH),
            TextColumn("{task.percentage:3.0f} %  loss {task.fields[loss]}{task.fields[valid]}  {task.fields[rate]}"),
            TextColumn("eta"),
            TimeRemainingColumn(),
            transient=False,
        )
        self._task = self._live.add_task("", total=1.0, epoch="", loss="...", valid="", rate="...")
        self._metric = ""
        self._first: tuple[float, float] | None = None  # time and fraction done at the first step shown
        self._last_line = 0.0

    def print(self, text: str) -> None:
        """Print a message above the live line."""
        print_message(self.console, message_line(text))

    def step(self, epoch: int, epochs: int, done: float, loss: float, speed: float, unit: str) -> None:
        """Show epoch, loss and speed; `done` is the fraction of the run that is over."""
        rate = f"{speed / 1000:.1f}k {unit}/s"
        self._live.update(self._task, completed=done, epoch=f"{epoch}/{epochs}", loss=f"{loss:.3f}", rate=rate)
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            line = f"epoch {epoch}/{epochs}  {done:4.0%}  loss {loss:.3f}{self._metric}  {rate}"
            remaining = self._seconds_left(now, done)
            self.print(line if remaining is None else f"{line}  eta {remaining:.0f} s")

    def _seconds_left(self, now: float, done: float) -> float | None:
        """Estimate the remaining time from the speed since the first step shown; None at that step."""
        began, done_then = self._first = self._first or (now, done)
        return (now - began) * (1 - done) / (done - done_then) if done > done_then else None

    def validated(self, metric: Metric, value: float, best: Best | None) -> None:
        """Show the validation metric, and the best value so far."""
        best_value = "" if best is None else f" (best {metric.shown(best.value)})"
        self._metric = f"  valid {metric.name} {metric.shown(value)}{best_value}"
        self._live.update(self._task, valid=self._metric)

    def __enter__(self) -> "Display":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()
