"""Progress bars (terminal only) and messages on stderr."""

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
    """Return a progress display that does not redirect stdout and is disabled unless the console is a terminal.

    By default rich redirects sys.stdout and sys.stderr to its console (here stderr) while a display is live, so that
    results would never reach a redirected stdout. Every `Progress` of the package is created here.
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
    """Progress bars and messages on a console, by default stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)

    def say(self, text: str) -> None:
        print_message(self.console, text)

    @contextmanager
    def byte_bar(self, name: str, size: int) -> Iterator[download.Progress]:
        """Show a bar for a file; call it with the number of bytes done."""
        with self._bar(name, size, DownloadColumn(), TransferSpeedColumn()) as progress:
            yield progress

    @contextmanager
    def count_bar(self, name: str, count: int, *, hidden: bool = False) -> Iterator[download.Progress]:
        """Show a bar for `count` items; call it with the number of items done."""
        with self._bar(name, count, MofNCompleteColumn(), hidden=hidden) as progress:
            yield progress

    @contextmanager
    def _bar(self, name: str, size: int, *amount: ProgressColumn, hidden: bool = False) -> Iterator[download.Progress]:
        columns = (
            TextColumn("{task.description}", markup=False),  # the name is not a format string
            BarColumn(bar_width=BAR_WIDTH),
            *amount,
            TextColumn("eta"),
            TimeRemainingColumn(),
        )
        with live_progress(self.console, *columns, hidden=hidden) as progress:
            task = progress.add_task(escape_controls(name), total=size)
            yield lambda done: progress.update(task, completed=done)
