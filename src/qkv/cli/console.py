"""Console output: results on stdout, messages and progress on stderr."""

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType

from qkv.runtime.bars import Bars, print_message
from qkv.runtime.download import Progress
from qkv.runtime.files import write_atomically
from qkv.runtime.text import BIDI, escape_controls, escape_controls_in_json, message_line


@cache
def stderr() -> Console:
    """Return the console shared by messages and progress bars, so that messages print above a live bar."""
    return Console(stderr=True)


def info(text: str) -> None:
    """Print a message to stderr."""
    print_message(stderr(), text)


def note(text: str) -> None:
    """Print a note to stderr, on one line of limited length."""
    info(message_line(f"note: {text}"))


class OutputClosed(Exception):  # noqa: N818  (not an error)
    """Stdout was closed by its reader (e.g. `head`)."""


def result(text: str) -> None:
    """Print a result unchanged; on a terminal, escape control characters other than newline and tab."""
    _print(escape_controls(text, keep="\n\t") if on_terminal() else text)


def result_line(*fields: str) -> None:
    """Print one line of tab-separated fields.

    Control characters, including tabs and newlines, are escaped in each field; bidirectional controls, which are
    legitimate text in some languages, only on a terminal.
    """
    keep = "" if on_terminal() else BIDI
    _print("\t".join(escape_controls(field, keep) for field in fields))


def result_json(value: Any) -> None:
    """Print a result as one line of JSON; non-finite numbers become null."""
    _print(escape_controls_in_json(json.dumps(_without_nan(value), ensure_ascii=False, allow_nan=False)))


def result_rich(renderable: RenderableType) -> None:
    """Print a rich renderable, in color on a terminal."""
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(renderable)
    _print(capture.get().removesuffix("\n"))


def result_page(text: str) -> None:
    """Print a result; if it does not fit on the terminal, through a pager ($PAGER, by default less)."""
    _print_page(escape_controls(text, keep="\n\t") if on_terminal() else text)


def result_markdown(text: str) -> None:
    """Print a Markdown document like `result_page`, laid out on a terminal."""
    if not on_terminal():
        _print(text)
        return
    from rich.markdown import Markdown

    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(Markdown(escape_controls(text, keep="\n\t")))
    _print_page("\n".join(line.rstrip() for line in capture.get().strip("\n").split("\n")))


def _print_page(text: str) -> None:
    pager = os.environ.get("PAGER", "less") if on_terminal() and sys.stdin is not None and sys.stdin.isatty() else ""
    columns, lines = shutil.get_terminal_size((80, 24))
    rows = sum(max(1, math.ceil(cell_len(line) / columns)) for line in text.split("\n"))
    if rows < lines or not pager or not _page(shlex.split(pager), text):
        _print(text)


def _page(command: list[str], text: str) -> bool:
    """Show a text in a pager; return False if there is none."""
    try:
        # as git: F quits if the text fits on the screen, R shows colors, X leaves the text on the screen at the end
        pager = subprocess.Popen(command, stdin=subprocess.PIPE, env={"LESS": "FRX", **os.environ})
    except OSError:
        return False
    try:
        pager.communicate(f"{text}\n".encode())
    except KeyboardInterrupt:  # which the pager receives, too, and may ignore
        pager.wait()
    return True


def screen_lines() -> int:
    """Return the number of lines that a figure may have without scrolling off the screen: 24 if it is not known."""
    return max(12, shutil.get_terminal_size((80, 24)).lines - 3)


def command_line() -> str:
    """Return the command that is running, as a shell takes it."""
    return shlex.join(["qkv", *sys.argv[1:]])


_redirected: list[list[str]] = []  # lines of the results that go to a file instead of stdout


@contextmanager
def results_to(path: Path | None) -> Iterator[None]:
    """Write the results printed inside to a file, complete or not at all, and print its path; None keeps stdout."""
    if path is None:
        yield
        return
    with collect_results() as lines:
        yield
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode())
    result(str(path))


@contextmanager
def collect_results() -> Iterator[list[str]]:
    """Collect the results printed inside in a list instead of printing them."""
    _redirected.append([])
    try:
        yield _redirected[-1]
    finally:
        _redirected.pop()


def result_piece(text: str) -> None:
    """Print a part of a result at once, without a line break."""
    try:
        print(escape_controls(text, keep="\n\t") if on_terminal() else text, end="", flush=True)  # noqa: T201
    except BrokenPipeError:
        raise OutputClosed from None


def rate_bar(what: str, total: int, first: int = 0) -> AbstractContextManager[Callable[[int, int], None]]:
    """Return a context manager that shows a progress bar with rates if stderr is a terminal (see `Bars.rate_bar`)."""
    return Bars(stderr()).rate_bar(what, total, first)


def progress_bar(what: str, total: int, *, streaming: bool = False) -> AbstractContextManager[Progress]:
    """Return a context manager that shows a progress bar if stderr is a terminal.

    With `streaming`, results are printed during the loop; the bar is hidden if stdout is a terminal too.
    """
    return Bars(stderr()).count_bar(what, total, hidden=streaming and on_terminal())


def _print(text: str) -> None:
    if _redirected:
        _redirected[-1].append(text)
        return
    try:
        print(text)  # noqa: T201  (rich would wrap or color it)
    except BrokenPipeError:
        raise OutputClosed from None


def on_terminal() -> bool:
    """Return whether results are printed on a terminal."""
    return not _redirected and sys.stdout.isatty()


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
