"""What a person sees while files are downloaded: a line for each set, and on a terminal a bar with rate and ETA."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from qkv.runtime import download


class DownloadDisplay:
    """Talks on stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def bar(self, name: str, size: int) -> Iterator[download.Progress]:
        """A bar for one file, where there is a terminal to draw it on; it is told how many bytes are there."""
        columns = (
            TextColumn(name),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TransferSpeedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal, transient=True) as progress:
            task = progress.add_task("", total=size)
            yield lambda done: progress.update(task, completed=done)
