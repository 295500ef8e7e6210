"""Output of commands: results on stdout, messages and progress on stderr."""

import json
import math
import sys
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from rich.console import Console, RenderableType

from qkv.runtime.bars import Bars, print_message
from qkv.runtime.download import Progress
from qkv.runtime.text import BIDI, escape_controls, escape_controls_in_json, message_line


@cache
def stderr() -> Console:
    """The console of messages and bars: one for both, so that a message is printed above a live bar."""
    return Console(stderr=True)


def say(text: str) -> None:
    """Print a message to stderr."""
    print_message(stderr(), text)


def note(text: str) -> None:
    """Print a note to stderr, on one line of limited length."""
    say(message_line(f"note: {text}"))


class ReaderLeft(Exception):  # noqa: N818  (not an error)
    """The reader of our stdout has closed it, as `head` does."""


def result(text: str) -> None:
    """Print a result as it is; on a terminal, control characters other than newline and tab are escaped."""
    _print(escape_controls(text, keep="\n\t") if _on_terminal() else text)


def result_line(*fields: str) -> None:
    """Print a result of one line, its fields separated by tabs.

    Control characters, among them tabs and newlines, are escaped in each field; bidirectional controls, which are
    part of the text in some languages, only on a terminal.
    """
    keep = "" if _on_terminal() else BIDI
    _print("\t".join(escape_controls(field, keep) for field in fields))


def result_json(value: Any) -> None:
    """Print a result as JSON on one line; a number that is not finite is null."""
    _print(escape_controls_in_json(json.dumps(_without_nan(value), ensure_ascii=False, allow_nan=False)))


def result_drawn(drawing: RenderableType) -> None:
    """Print a drawing, in colours on a terminal."""
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    with console.capture() as drawn:
        console.print(drawing)
    _print(drawn.get().removesuffix("\n"))


def counting(what: str, total: int, *, streaming: bool = False) -> AbstractContextManager[Progress]:
    """A progress bar on stderr, if that is a terminal.

    `streaming` says that results are printed meanwhile: on a terminal they would mix with the bar, which is hidden.
    """
    return Bars(stderr()).of_things(what, total, hidden=streaming and _on_terminal())


def _print(text: str) -> None:
    try:
        print(text)  # noqa: T201  (rich would wrap or colour it)
    except BrokenPipeError:
        raise ReaderLeft from None


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
