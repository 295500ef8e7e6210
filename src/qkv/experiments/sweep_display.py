"""Progress of a sweep on stderr: bars on a terminal, a line every few seconds elsewhere."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn

from qkv.experiments.sweep_workers import read_status
from qkv.runtime.bars import BAR_WIDTH, live_progress, print_message
from qkv.runtime.text import message_line

SECONDS_BETWEEN_LINES = 10.0


class SweepDisplay:
    """Shows a bar for the sweep with the time that is left, and one for each run in progress."""

    def __init__(
        self, folder: Path, names: Sequence[str], done: Iterable[str], console: Console | None = None,
        title: str = "sweep",
    ) -> None:  # fmt: skip
        self._title = title
        self.console = console or Console(stderr=True)
        self._folder, self._names, self._ended = folder, names, set(done)
        self._kept = len(self._ended)
        self._live = live_progress(
            self.console,
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=BAR_WIDTH),
            TextColumn("{task.percentage:3.0f} %  {task.fields[text]}", markup=False),
            transient=False,
        )
        self._sweep = self._live.add_task(title, total=1.0, text="")
        self._bars: dict[str, TaskID] = {}
        self._began = time.monotonic()
        self._resumed: dict[str, float] = {}  # fractions of runs that were done before
        self._last_line = 0.0

    def print(self, text: str) -> None:
        """Print a message above the bars."""
        print_message(self.console, message_line(text))

    def update(self, running: Sequence[str]) -> None:
        """Show the progress of the sweep and of the runs in progress."""
        statuses = {name: read_status(self._folder, name) for name in running}
        done = (len(self._ended) + sum(status.done for status in statuses.values())) / len(self._names)
        for name, status in statuses.items():
            if status.done:
                self._resumed.setdefault(name, status.done)
        now = time.monotonic()
        gained = done - (self._kept + sum(self._resumed.values())) / len(self._names)
        left = f"  eta {_clock((now - self._began) * (1 - done) / gained)}" if gained > 0 else ""
        text = f"{len(self._ended)}/{len(self._names)} runs{left}"
        self._live.update(self._sweep, completed=done, text=text)
        for name in [name for name in self._bars if name not in statuses]:
            self._live.remove_task(self._bars.pop(name))
        for name, status in statuses.items():
            if name not in self._bars:
                self._bars[name] = self._live.add_task(f"  {name}", total=1.0, text="")
            self._live.update(self._bars[name], completed=status.done, text=status.text)
        if not self.console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            runs = "; ".join(f"{name} {status.done:.0%} {status.text}" for name, status in statuses.items())
            self.print(f"{self._title} {done:.0%}  {text}  {runs}")

    def finished(self, name: str) -> None:
        """Show that a run has ended."""
        self._ended.add(name)
        error = read_status(self._folder, name).error
        self.print(f"{name}: failed: {error}" if error else f"{name}: done")

    def __enter__(self) -> "SweepDisplay":
        if self._kept:
            self.print(f"{self._kept} of {len(self._names)} runs are finished already")
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
