"""How commands speak: results on stdout, talk on stderr."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

stdout = Console(soft_wrap=True, highlight=False, markup=False)
stderr = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


def say(text: str) -> None:
    """Say something to the person, not to the pipe."""
    stderr.print(text)


def note(text: str) -> None:
    """Say something that the person did not ask for but should know."""
    say(f"note: {text}")


class ReaderLeft(Exception):  # noqa: N818  (it names what happened, and nothing is wrong)
    """Whoever read our results has seen enough, as `head` does."""


def result(text: str) -> None:
    """Print a result, just as it is."""
    try:
        print(text)  # noqa: T201  (rich would wrap or colour it)
    except BrokenPipeError:
        raise ReaderLeft from None


def result_json(value: Any) -> None:
    """Print a result for machines, on one line; JSON has no word for a number that is none but null."""
    result(json.dumps(_without_nan(value), ensure_ascii=False, allow_nan=False))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def result_drawn(drawing: RenderableType) -> None:
    """Print a drawing, in colours where there is a terminal."""
    with stdout.capture() as drawn:
        stdout.print(drawing)
    result(drawn.get().removesuffix("\n"))


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
