"""What a person sees of work that takes long: on a terminal a bar with its rate and the time left, else nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from qkv.runtime import download


class Bars:
    """Talks on stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def of_bytes(self, name: str, size: int) -> Iterator[download.Progress]:
        """For a file; it is told how many bytes are there."""
        with self._bar(name, size, DownloadColumn(), TransferSpeedColumn()) as progress:
            yield progress

    @contextmanager
    def of_things(self, name: str, count: int) -> Iterator[download.Progress]:
        """For anything that is counted; it is told how many are done."""
        with self._bar(name, count, MofNCompleteColumn()) as progress:
            yield progress

    @contextmanager
    def _bar(self, name: str, size: int, *amount: ProgressColumn) -> Iterator[download.Progress]:
        columns = (
            TextColumn("{task.description}", markup=False),  # the name itself would be taken for a format
            BarColumn(bar_width=24),
            *amount,
            TextColumn("eta"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal, transient=True) as progress:
            task = progress.add_task(name, total=size)
            yield lambda done: progress.update(task, completed=done)
