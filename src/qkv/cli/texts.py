"""How commands take texts, one an argument or one a line, and give an answer for each in the same order."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from qkv.cli.talk import counting, note, say
from qkv.errors import InputError

if TYPE_CHECKING:
    from qkv.data.tagged import Tagged
    from qkv.tasks.observer import Observer
    from qkv.tasks.reader import Reader

CHUNK = 1024  # texts that are held in memory with their answers

Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="What to read.")]
Input = Annotated[
    Path | None, typer.Option("--input", "--file", metavar="FILE", help="Read each line of a file as a text.")
]
Documents = Annotated[
    list[Path] | None,
    typer.Option("--document", metavar="FILE", help="Read a whole file as one text; may be given several times."),
]
BatchTokens = Annotated[int, typer.Option("--batch-tokens", min=1, help="How many tokens to read at once.")]

T = TypeVar("T")


def texts_given(texts: list[str] | None, file: Path | None, *, strict: bool, option: str = "--input") -> list[str]:
    """The texts from the arguments, else the lines of the file that an option named, else those of standard input."""
    if texts and file:
        raise InputError(f"give texts or {option}, not both")
    lines = texts or _lines(file)
    empty = [number for number, line in enumerate(lines, start=1) if not line.strip()]
    if empty and (strict or texts):
        raise InputError(f"input {empty[0]} is empty ({len(empty)} such input(s))")
    if empty:
        note(f"{len(empty)} empty line(s), the first is line {empty[0]}: their answers are empty too")
    return lines


def parsed_given(texts: list[str] | None, file: Path | None) -> list["Tagged"]:
    """The sentences of the file that an option named, with their words and heads, if it is CoNLL-U; else none."""
    from qkv.data.files import is_parsed, read_parsed

    return read_parsed(file) if file is not None and is_parsed(file) and not texts else []


def documents_given(paths: Sequence[Path]) -> list[str]:
    """Files, each of which is a text; one in which there is nothing is an error."""
    from qkv.data.files import read_text

    found = [read_text(path) for path in paths]
    for path, text in zip(paths, found, strict=True):
        if not text.strip():
            raise InputError(f"{path}: is empty")
    return found


def note_too_long(reader: "Reader | Observer", lines: Sequence[str]) -> None:
    """Say how many texts will be read in part only."""
    if long := reader.too_long(lines):
        note(
            f"{len(long)} text(s) are longer than the {reader.room} {reader.unit} that this model reads, the first is "
            f"input {long[0]}: their ends are left out"
        )


def answered(
    doing: str, lines: Sequence[str], answers: Callable[[list[str]], Sequence[T]], together: int = CHUNK
) -> Iterator[tuple[int, str, T | None]]:
    """Each line with its number and its answer; a line that is empty has none."""
    with counting(doing, len(lines), streaming=True) as progress:
        for begin in range(0, len(lines), together):
            chunk = lines[begin : begin + together]
            found = iter(answers([line for line in chunk if line.strip()]))
            for number, line in enumerate(chunk, start=begin + 1):
                yield number, line, next(found) if line.strip() else None
            progress(begin + len(chunk))


def read_stdin(what: str) -> bytes:
    """Read standard input to its end; on a terminal, first say that `what` is read from the keyboard."""
    if sys.stdin is None:
        raise InputError("standard input is closed: give the input as arguments or in a file")
    if sys.stdin.isatty():
        say(f"reading {what} from the keyboard; end with Ctrl-D")
    return sys.stdin.buffer.read()


def _lines(file: Path | None) -> list[str]:
    from qkv.data.files import decode_lines, read_lines

    return read_lines(file) if file is not None else decode_lines(read_stdin("lines"), "standard input")
