"""Read the texts of a command from arguments, files or stdin, and yield predictions in input order."""

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from qkv.cli.console import info, note, progress_bar
from qkv.errors import InputError
from qkv.runtime.files import file_kind
from qkv.runtime.text import printable

if TYPE_CHECKING:
    from qkv.datasets.examples.tagged import Tagged
    from qkv.interpret.attention_probe import AttentionProbe
    from qkv.pipelines.pipeline import TextPipeline

STDIN = "standard input"
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})")  # path of a pipe made by shell process substitution
MAX_UNKNOWN_SHOWN = 10  # unknown tokens listed in one note
MIN_REPETITIVE = 12  # words of a text that can be called repetitive
MAX_UNKNOWN_INPUTS = 10_000  # whose unknown tokens are kept
CHUNK = 1024  # texts processed at a time

InputRole = Literal["text", "image", "audio"]  # of the inputs of a command

T = TypeVar("T")
K = TypeVar("K")


def read_texts(
    texts: list[str] | None,
    file: Path | None,
    documents: list[Path] | None = None,
    *,
    strict: bool,
    columns: Mapping[str, str] | None = None,
    role: InputRole = "text",
) -> list[str]:
    """Return the inputs of a command as `read_inputs` does, or the contents of whole documents.

    An empty input is an error if `strict` or if it is an argument, else a note.
    """
    if documents and (texts or file is not None):
        raise InputError("arguments, --input and --document are mutually exclusive: pass one of them")
    if documents:
        return read_documents(documents)
    lines = read_inputs(texts, file, columns, role)
    empty = [number for number, line in enumerate(lines, start=1) if not line.strip()]
    if empty and (strict or lines is texts):
        raise InputError(empty_input(empty[0], len(empty)))
    if empty:
        note(f"{len(empty)} empty line(s), first at line {empty[0]}; their results are empty")
    return lines


def read_inputs(
    texts: list[str] | None, file: Path | None, columns: Mapping[str, str] | None = None, role: InputRole = "text"
) -> list[str]:
    """Return the inputs of a command: its arguments, the lines of `file`, a column of a table, or the lines of stdin.

    The only argument "-" is stdin, as in other tools. If `columns` is given, the inputs in a table (*.csv, *.tsv,
    *.jsonl) are those of one column, with this name by role. Images and recordings are paths, in a table relative to
    its folder.
    """
    from qkv.datasets.formats.roles import INPUTS
    from qkv.datasets.formats.text_files import is_table, read_column

    if texts == ["-"] and file is None:
        texts, file = None, Path("-")
    if texts and file is not None:
        raise InputError("arguments and --input are mutually exclusive: pass one of them")
    if columns is None or file is None or not is_table(file):
        if columns:
            raise InputError("--column requires a table (*.csv, *.tsv or *.jsonl) as --input")
        return texts or read_lines(file)
    lines, notes = read_column(file, [INPUTS[role]], columns)
    for message in notes:
        note(message)
    return lines if role == "text" else [str(file.parent / line) if line.strip() else line for line in lines]


def input_role(run: str | Path) -> InputRole:
    """Return the role of the inputs of a model: texts or images."""
    from qkv.hub.model_folder import ModelFolder, locate

    return ModelFolder(locate(run)).network.input_role


def empty_input(first: int | None, count: int) -> str:
    """Return a message about empty inputs, the first by its number."""
    return f"input {first} is empty{f' and {count - 1:,} more' if count > 1 else ''}"


def read_conllu(texts: list[str] | None, file: Path | None) -> list["Tagged"]:
    """Return the parsed sentences of `file` if it is CoNLL-U, else an empty list."""
    from qkv.datasets.formats.text_files import is_parsed, read_parsed

    return read_parsed(file) if file is not None and is_parsed(file) and not texts else []


def read_documents(paths: Sequence[Path]) -> list[str]:
    """Return the contents of files, one text per file; an empty file is an error."""
    documents = [read_text(path, "a text") for path in paths]
    for path, text in zip(paths, documents, strict=True):
        if not text.strip():
            raise InputError(f"{path}: file is empty")
    return documents


def note_too_long(reader: "TextPipeline | AttentionProbe", lines: Sequence[str]) -> None:
    """Note how many texts exceed the model's maximum length and will be truncated."""
    from qkv.pipelines.pipeline import truncation_note

    if (long := reader.too_long(lines)) and reader.max_tokens is not None:
        note(truncation_note(long, reader.max_tokens, reader.unit))


def note_unknown_tokens(unknown: Mapping[Any, Sequence[str]], what: str = "input") -> None:
    """Print one note listing the out-of-vocabulary tokens of all inputs (input number or name -> tokens)."""
    if not unknown:
        return
    tokens = list(dict.fromkeys(chain.from_iterable(unknown.values())))
    names = [f"'{printable(t, 20)}' ({' '.join(f'U+{ord(c):04X}' for c in t[:3])})" for t in tokens[:MAX_UNKNOWN_SHOWN]]
    more = f" and {len(tokens) - MAX_UNKNOWN_SHOWN:,} more" if len(tokens) > MAX_UNKNOWN_SHOWN else ""
    first = f"input {next(iter(unknown))}"
    where = first if len(unknown) == 1 else f"{len(unknown):,} inputs, the first is {first}"
    hint = "; the input has tabs: pass a single column (cut -f 1)" if "\t" in tokens else ""
    note(f"{where}: out-of-vocabulary tokens: {', '.join(names)}{more}{hint}")


def is_repetitive(text: str) -> bool:
    """Return whether a text has many words but few different ones, as the output of a model that fails often has."""
    words = text.casefold().split()
    return len(words) >= MIN_REPETITIVE and len(set(words)) <= len(words) / 4


def add_unknown_tokens(unknown: dict[K, Sequence[str]], more: Mapping[K, Sequence[str]]) -> None:
    """Add the out-of-vocabulary tokens of more inputs, up to a limit: a file can have any number of lines."""
    if len(unknown) < MAX_UNKNOWN_INPUTS:
        unknown.update(more)


def predictions(
    label: str, lines: Sequence[str], predict: Callable[[list[str]], Sequence[T]], chunk_size: int = CHUNK
) -> Iterator[tuple[int, str, T | None]]:
    """Yield (number, line, prediction) for each line; the prediction for an empty line is None."""
    with progress_bar(label, len(lines), streaming=True) as progress:
        for begin in range(0, len(lines), chunk_size):
            chunk = lines[begin : begin + chunk_size]
            outputs = iter(predict([line for line in chunk if line.strip()]))
            for number, line in enumerate(chunk, start=begin + 1):
                yield number, line, next(outputs) if line.strip() else None
            progress(begin + len(chunk))


def read_stdin(what: str) -> bytes:
    """Read all of standard input; on a terminal, first prompt for `what`."""
    if sys.stdin is None:
        raise InputError("standard input is closed; pass the input as arguments or in a file")
    if sys.stdin.isatty():
        info(f"reading {what} from the keyboard; end with Ctrl-D")
    return sys.stdin.buffer.read()


def read_lines(file: Path | None) -> list[str]:
    """Return the lines of standard input (None or -), of a pipe or of a regular file."""
    from qkv.datasets.formats.text_files import decode_lines

    return decode_lines(_read_once(file, "lines"), _name(file))


def read_text(file: Path | None, what: str) -> str:
    """Return the contents of standard input (None or -), of a pipe or of a regular file."""
    from qkv.datasets.formats.text_files import decode_text

    return decode_text(_read_once(file, what), _name(file))


def _read_once(file: Path | None, what: str) -> bytes:
    from qkv.runtime.files import read_regular

    descriptor = None if file is None else DESCRIPTOR.fullmatch(str(file))
    if file is None or _name(file) == STDIN:
        return read_stdin(what)
    if descriptor is not None:
        return _read_descriptor(int(descriptor[1]), file)
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError):
        return read_regular(file)  # raises the error message
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{file}: is {file_kind(mode)}: use standard input instead (< {file})")
    return read_regular(file)


def _read_descriptor(number: int, file: Path) -> bytes:
    """Read an open pipe or file, such as the shell's `<(command)`."""
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISFIFO(mode) and not stat.S_ISREG(mode):
            raise InputError(f"{file}: is {file_kind(mode)}, not a pipe or a file")
        with open(os.dup(number), "rb") as stream:  # opening the path would open the pipe a second time
            return stream.read()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None


def _name(file: Path | None) -> str:
    return STDIN if file is None or str(file) in ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0") else str(file)
