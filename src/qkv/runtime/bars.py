"""Progress bars (terminal only) and messages on stderr."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import rich.progress
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from qkv.runtime import download
from qkv.runtime.text import escape_controls

BAR_WIDTH = 24


class Progress(rich.progress.Progress):
    """A progress display with other renderables above its bars."""

    above: Callable[[], Iterable[RenderableType]] = tuple

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from self.above()
        yield from super().get_renderables()


def live_progress(
    console: Console,
    *columns: ProgressColumn,
    transient: bool = True,
    hidden: bool = False,
    above: Callable[[], Iterable[RenderableType]] = tuple,
) -> Progress:
    """Return a progress display that does not redirect stdout and is disabled unless the console is a terminal.

    `above` returns what is shown above the bars, at each refresh.

    By default rich redirects sys.stdout and sys.stderr to its console (here stderr) while a display is live, so that
    results would never reach a redirected stdout. Every `Progress` of the package is created here.
    """
    progress = Progress(
        *columns,
        console=console,
        disable=hidden or not console.is_terminal,
        transient=transient,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    progress.above = above
    return progress


def print_message(console: Console, text: str) -> None:
    """Print text above a live bar: no markup, no wrapping, control characters escaped."""
    console.print(escape_controls(text, keep="\n\t"), highlight=False, markup=False, emoji=False, soft_wrap=True)


class Bars:
    """Progress bars and messages on a console, by default stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)

    def say(self, text: str) -> None:
        print_message(self.console, text)

    def byte_bar(self, name: str, size: int) -> AbstractContextManager[download.Progress]:
        """Show a bar for a file; call it with the number of bytes done."""
        return self._bar(name, size, DownloadColumn(), TransferSpeedColumn())

    def count_bar(self, name: str, count: int, *, hidden: bool = False) -> AbstractContextManager[download.Progress]:
        """Show a bar for `count` items; call it with the number of items done."""
        return self._bar(name, count, MofNCompleteColumn(), hidden=hidden)

    @contextmanager
    def rate_bar(self, name: str, count: int, first: int = 0) -> Iterator[Callable[[int, int], None]]:
        """Show a bar for `count` lines, with their rate; call it with the numbers of new lines and of their tokens.

        The first `first` lines are done already.
        """
        columns = (MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
        began, lines, tokens = time.monotonic(), 0, 0

        def update(new_lines: int, new_tokens: int) -> None:
            nonlocal lines, tokens
            lines, tokens = lines + new_lines, tokens + new_tokens
            seconds = max(time.monotonic() - began, 1e-9)
            rate = f"{lines / seconds:,.1f} lines/s  {tokens / seconds:,.0f} tokens/s"
            progress.update(task, completed=first + lines, rate=rate)

        with live_progress(self.console, *_columns(*columns)) as progress:
            task = progress.add_task(escape_controls(name), total=count, completed=first, rate="")
            yield update

    @contextmanager
    def _bar(self, name: str, size: int, *amount: ProgressColumn, hidden: bool = False) -> Iterator[download.Progress]:
        with live_progress(self.console, *_columns(*amount), hidden=hidden) as progress:
            task = progress.add_task(escape_controls(name), total=size)
            yield lambda done: progress.update(task, completed=done)


def _columns(*amount: ProgressColumn) -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description}", markup=False),  # the name is not a format string
        BarColumn(bar_width=BAR_WIDTH),
        *amount,
        TextColumn("eta"),
        TimeRemainingColumn(),
    )
