"""How commands take texts, one an argument or one a line, and give an answer for each in the same order."""

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from qkv.cli import options
from qkv.cli.talk import counting, note, say
from qkv.config import shown
from qkv.errors import InputError
from qkv.runtime.files import file_kind

if TYPE_CHECKING:
    from qkv.data.tagged import Tagged
    from qkv.tasks.attention_probe import AttentionProbe
    from qkv.tasks.text_pipeline import TextPipeline

STDIN = "standard input"
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})")  # the name that the shell gives to a pipe
MOST_UNKNOWN = 10  # tokens that one note names
CHUNK = 1024  # texts that are held in memory with their answers

Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="What to read.")]
Input = Annotated[
    Path | None,
    typer.Option(
        "--input", "--file", metavar="FILE", help="Read each line of a file (- for standard input) as a text."
    ),
]
Documents = Annotated[
    list[Path] | None,
    typer.Option("--document", metavar="FILE", help="Read a whole file as one text; may be given several times."),
]
BatchTokens = Annotated[
    int, typer.Option("--batch-tokens", min=1, max=options.MOST, help="How many tokens to read at once.")
]

T = TypeVar("T")


def texts_given(texts: list[str] | None, file: Path | None, *, strict: bool, option: str = "--input") -> list[str]:
    """The texts from the arguments, else the lines of the file that an option named, else those of standard input."""
    if texts and file:
        raise InputError(f"give texts or {option}, not both")
    lines = texts or input_lines(file)
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
    found = [input_text(path, "a text") for path in paths]
    for path, text in zip(paths, found, strict=True):
        if not text.strip():
            raise InputError(f"{path}: is empty")
    return found


def note_too_long(reader: "TextPipeline | AttentionProbe", lines: Sequence[str]) -> None:
    """Say how many texts will be read in part only."""
    if long := reader.too_long(lines):
        note(
            f"{len(long)} text(s) are longer than the {reader.max_tokens} {reader.unit} that this model reads, the "
            f"first is input {long[0]}: their ends are left out"
        )


def note_unknown(unknown: Mapping[int, Sequence[str]], what: str = "input") -> None:
    """Note which inputs, by their numbers, hold tokens that are not in the vocabulary; one note for all of them."""
    if not unknown:
        return
    tokens = list(dict.fromkeys(chain.from_iterable(unknown.values())))
    names = [f"'{shown(one, 20)}' ({' '.join(f'U+{ord(c):04X}' for c in one[:3])})" for one in tokens[:MOST_UNKNOWN]]
    more = f" and {len(tokens) - MOST_UNKNOWN:,} more" if len(tokens) > MOST_UNKNOWN else ""
    first = f"{what} {next(iter(unknown))}"
    where = first if len(unknown) == 1 else f"{len(unknown):,} {what}s, the first is {first}"
    hint = "; of a file with columns, give only the first, as cut -f 1 prints it" if "\t" in tokens else ""
    note(f"{where}: never seen in training, read as unknown: {', '.join(names)}{more}{hint}")


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


def input_lines(file: Path | None) -> list[str]:
    """The lines of a file that is read once: standard input (None or -), a pipe of the shell, or a regular file."""
    from qkv.data.files import decode_lines

    return decode_lines(_read_once(file, "lines"), _name(file))


def input_text(file: Path | None, what: str) -> str:
    """The whole text of such a file; `what` is said to be read from the keyboard."""
    from qkv.data.files import decode_text

    return decode_text(_read_once(file, what), _name(file))


def _read_once(file: Path | None, what: str) -> bytes:
    from qkv.data.files import read_data

    descriptor = None if file is None else DESCRIPTOR.fullmatch(str(file))
    if file is None or _name(file) == STDIN:
        return read_stdin(what)
    if descriptor is not None:
        return _read_descriptor(int(descriptor[1]), file)
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError):
        return read_data(file)  # which says what is wrong
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{file}: is {file_kind(mode)}: use standard input instead (< {file})")
    return read_data(file)


def _read_descriptor(number: int, file: Path) -> bytes:
    """Read an open pipe or file to its end, such as what `<(command)` of the shell names."""
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISFIFO(mode) and not stat.S_ISREG(mode):
            raise InputError(f"{file}: is {file_kind(mode)}, not a pipe or a file")
        with open(os.dup(number), "rb") as stream:  # not the path, which would open the pipe a second time
            return stream.read()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None


def _name(file: Path | None) -> str:
    return STDIN if file is None or str(file) in ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0") else str(file)
