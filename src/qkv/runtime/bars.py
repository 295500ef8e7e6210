"""Progress bars and messages on stderr: a bar with its rate and the remaining time on a terminal, else nothing."""

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
from qkv.runtime.text import escape_controls

BAR_WIDTH = 24


def live_progress(console: Console, *columns: ProgressColumn, transient: bool = True, hidden: bool = False) -> Progress:
    """A progress display that leaves stdout alone and is disabled where the console is no terminal.

    By default rich replaces sys.stdout and sys.stderr while a display is live and prints to its own console, here
    stderr: results would never reach a redirected stdout. Every `Progress` of the package is created here.
    """
    return Progress(
        *columns,
        console=console,
        disable=hidden or not console.is_terminal,
        transient=transient,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def print_message(console: Console, text: str) -> None:
    """Print text above a live bar: no markup, no wrapping, control characters escaped."""
    console.print(escape_controls(text, keep="\n\t"), highlight=False, markup=False, emoji=False, soft_wrap=True)


class Bars:
    """Bars and messages on a console, by default stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)

    def say(self, text: str) -> None:
        print_message(self.console, text)

    @contextmanager
    def of_bytes(self, name: str, size: int) -> Iterator[download.Progress]:
        """A bar for a file; it is called with the number of bytes so far."""
        with self._bar(name, size, DownloadColumn(), TransferSpeedColumn()) as progress:
            yield progress

    @contextmanager
    def of_things(self, name: str, count: int, *, hidden: bool = False) -> Iterator[download.Progress]:
        """A bar for anything that is counted; it is called with the number that is done."""
        with self._bar(name, count, MofNCompleteColumn(), hidden=hidden) as progress:
            yield progress

    @contextmanager
    def _bar(self, name: str, size: int, *amount: ProgressColumn, hidden: bool = False) -> Iterator[download.Progress]:
        columns = (
            TextColumn("{task.description}", markup=False),  # the name itself would be taken for a format
            BarColumn(bar_width=BAR_WIDTH),
            *amount,
            TextColumn("eta"),
            TimeRemainingColumn(),
        )
        with live_progress(self.console, *columns, hidden=hidden) as progress:
            task = progress.add_task(escape_controls(name), total=size)
            yield lambda done: progress.update(task, completed=done)
