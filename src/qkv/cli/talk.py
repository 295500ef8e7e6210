"""How commands speak: results on stdout, talk on stderr."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

stdout = Console(soft_wrap=True, highlight=False, markup=False)
stderr = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


def say(text: str) -> None:
    """Say something to the person, not to the pipe."""
    stderr.print(text)


def result(text: str) -> None:
    """Print a result, just as it is."""
    print(text)  # noqa: T201  (rich would wrap or colour it)


def result_json(value: Any) -> None:
    """Print a result for machines, on one line."""
    result(json.dumps(value, ensure_ascii=False))


class Counter:
    """A progress bar that is told how many are done."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)

    def __call__(self, done: int) -> None:
        self._progress.update(self._task, completed=done)


@contextmanager
def counting(what: str, total: int) -> Iterator[Counter]:
    """Show how far a long job has come, on a terminal; nothing elsewhere."""
    columns: Sequence[Any] = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal, transient=True) as progress:
        yield Counter(progress, total)
