"""Read user files: pairs from a two-column table or two parallel files, text, and held-out splits."""

import codecs
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.tagged import Tagged, parse_conllu, text_of
from qkv.datasets.formats.roles import LABELED_TEXT, PAIR, Role
from qkv.datasets.formats.sniff import binary_kind, is_header, looks_tagged
from qkv.datasets.formats.tables import JSON, TABLES, Table, as_json_lines, parse_table
from qkv.errors import InputError
from qkv.runtime.files import open_regular, read_regular

MAX_HELD_OUT = 1000
MAX_LINE_BYTES = 2**26  # of a LineFile

Split = Literal["train", "valid", "test"]
Example = TypeVar("Example")


def read_pairs(
    paths: Sequence[Path],
    *,
    strict: bool = False,
    labelled: bool = False,
    columns: Mapping[str, str] | None = None,
) -> tuple[list[Pair], list[str]]:
    """Read pairs, and notes, from a table (TSV, *.csv, *.jsonl), or from a source and a target file.

    A header and lines with an empty side are skipped with a note; with `strict` they are errors. `columns` are the
    names of columns by role. Sources from a *.conllu file include words and heads. With `labelled` the targets are
    class labels, stripped of whitespace.
    """
    what, roles = ("texts with labels", LABELED_TEXT) if labelled else ("pairs", PAIR)
    numbered: Sequence[tuple[int, str | Tagged, str]]
    notes = []
    if len(paths) == 1:
        table, name = read_table(paths[0], roles, columns), str(paths[0])
        if table.header is not None and strict and not columns:
            raise InputError(f"{name}: line {table.header} is a header: remove it, or name its columns with --column")
        notes += table_notes(table, name)
        first, second = (role.name for role in roles)
        numbered = [(row.number, row.text(first, name), row.text(second, name)) for row in table.rows]
        if looks_tagged([f"{source}\t{target}" if source or target else "" for _, source, target in numbered]):
            notes.append(f"{name}: looks like words and tags in CoNLL columns, but is read as {what}")
    elif len(paths) == 2:
        numbered, name = list(_parallel(*paths)), f"{paths[0]} and {paths[1]}"
        first_row = [text_of(numbered[0][1]), numbered[0][2]] if numbered else []
        if is_header(first_row, (target for _, _, target in numbered[1:])):
            header = f"{name}: line {numbered[0][0]} is a header ({', '.join(first_row)})"
            if strict:
                raise InputError(f"{header}: remove it")
            notes.append(f"{header}: skipped")
            numbered = numbered[1:]
    else:
        raise InputError(f"{what} come from one table or from two files, not from {len(paths)}")
    pairs = []
    empty: dict[str, list[int]] = {}  # numbers of the lines that are skipped, by what they lack
    for number, source, target in numbered:
        text = text_of(source)
        if text.strip() and target.strip():
            parsed = source if isinstance(source, Tagged) else None
            pairs.append(Pair(text, target.strip() if labelled else target, parsed=parsed))
        else:
            lacks = "an empty side" if not labelled else "no label" if text.strip() else "an empty text"
            empty.setdefault(lacks, []).append(number)
    for lacks, numbers in empty.items() if strict else ():
        raise InputError(f"{name}: line {numbers[0]} has {lacks} ({len(numbers)} such line(s))")
    if not pairs:
        raise InputError(f"{name}: no {what} found")
    for lacks, numbers in empty.items():
        notes += skipped_note(name, numbers, lacks)
    return pairs, notes


def read_table(path: Path, roles: Sequence[Role], columns: Mapping[str, str] | None = None) -> Table:
    """Read a table whose format follows from the name of the file."""
    if is_parsed(path):
        raise InputError(f"{path}: has no targets: add a second file with one target per sentence")
    return parse_table(read_lines(path), path.suffix, str(path), roles, columns)


def is_table(path: Path) -> bool:
    """Return whether a file is a table by its name: *.csv, *.tsv, *.jsonl or *.json."""
    return path.suffix.lower() in (*TABLES, JSON)


def read_column(path: Path, roles: Sequence[Role], columns: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Read the texts in one column of a table, and notes."""
    lines, suffix = as_json_lines(read_lines(path), path.suffix, str(path))
    if suffix.lower() == JSON:
        raise InputError(f"{path}: expected a JSON array of objects")
    table, name = parse_table(lines, suffix, str(path), roles, columns), str(path)
    return [row.text(roles[0].name, name) for row in table.rows], table_notes(table, name)


def table_notes(table: Table, name: str) -> list[str]:
    """Return notes on the header of a table, on its columns and on its values."""
    notes = [f"{name}: {message}" for message in table.notes]
    if table.header is not None:
        return [f"{name}: line {table.header} is a header: {table.description}", *notes]
    return [f"{name}: {table.description}", *notes] if table.description else notes


def skipped_note(name: str, numbers: Sequence[int], what: str = "an empty side") -> list[str]:
    """Return a note on skipped lines, if there are any."""
    return [f"{name}: skipped {len(numbers)} line(s) with {what}, the first at line {numbers[0]}"] if numbers else []


def is_parsed(path: Path) -> bool:
    """Return whether a file is named *.conllu."""
    return path.suffix.lower() == ".conllu"


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 text file."""
    return decode_lines(read_regular(path), str(path))


def read_parsed(path: Path) -> list[Tagged]:
    """Read the sentences of a CoNLL-U file, at least one."""
    sentences = parse_conllu(read_lines(path), str(path))
    if not sentences:
        raise InputError(f"{path}: no sentences found")
    return sentences


def read_text(path: Path) -> str:
    """Read a UTF-8 text file."""
    return decode_text(read_regular(path), str(path))


def decode_lines(data: bytes, name: str) -> list[str]:
    """Split UTF-8 data into lines; error messages start with `name`.

    Lines end with LF or CR LF, or with CR if the text has no LF.
    """
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        raise InputError(f"{name}: is empty")
    text = decode_text(data, name)
    if "\n" not in text:
        text = text.replace("\r", "\n")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def decode_text(data: bytes, name: str, first_line: int = 1, offset: int = 0, head: bytes = b"") -> str:
    """Decode UTF-8 data; binary data is an InputError that starts with `name`.

    `first_line` and `offset` are the position of the data in a file that begins with `head`.
    """
    try:
        text = data.decode("utf-8-sig" if first_line == 1 else "utf-8")
        at, problem, advice = data.find(b"\0"), "contains NUL", "is it a binary file?"
    except UnicodeDecodeError as error:
        at = error.start + (3 if first_line == 1 and data.startswith(codecs.BOM_UTF8) else 0)
        source = "UTF-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "LATIN1"
        problem, advice = "not UTF-8", f"convert it first, e.g. iconv -f {source} -t UTF-8 FILE > NEW"
    if at < 0:
        return text
    if kind := binary_kind(head or data):
        raise InputError(f"{name}: is a binary file ({kind}), expected text in UTF-8")
    line = first_line + data.count(b"\n", 0, at)
    raise InputError(f"{name}: {problem} at byte {offset + at} (0x{data[at]:02x}), line {line}: {advice}")


@dataclass(frozen=True)
class Span:
    """Consecutive lines of a file, which another process can read without the lines before them."""

    path: str
    first: int  # index of the first line
    count: int
    offset: int  # of the first line, in bytes; 0 if the lines before it must be read (they end with CR)
    sha256: str  # of the lines

    def read(self) -> list[str]:
        """Return the lines; raise if they are not those that the span was created from."""
        skipped = 0 if self.offset else self.first
        lines = (line for _, line in _read_lines(Path(self.path), offset=self.offset, number=self.first - skipped))
        texts = list(islice(lines, skipped, skipped + self.count))
        if _sha256(texts) != self.sha256:
            raise InputError(f"{self.path}: has changed since the job was started, or is another file on this machine")
        return texts


class LineFile:
    """The lines of a UTF-8 file of any length, which end as in `decode_lines`.

    It is read once to check and to count them, and then a few lines at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = self.blank_count = 0
        self.first_blank: int | None = None  # number of the first blank line
        digest = hashlib.sha256()
        for _, line in _read_lines(path, digest):
            self.count += 1
            if not line.strip():
                self.blank_count += 1
                self.first_blank = self.first_blank or self.count
        self.sha256 = digest.hexdigest()
        if self.blank_count == self.count:
            raise InputError(f"{path}: is empty")

    def spans(self, size: int, first: int = 0) -> Iterator[Span]:
        """Yield every `size` lines, from line `first` on."""
        path = str(self.path.absolute())
        lines = islice(_read_lines(self.path), first, None)
        while chunk := list(islice(lines, size)):
            yield Span(path, first, len(chunk), chunk[0][0], _sha256([line for _, line in chunk]))
            first += len(chunk)


def _read_lines(path: Path, digest: Any = None, offset: int = 0, number: int = 0) -> Iterator[tuple[int, str]]:
    """Yield (offset in bytes, line) from an offset on, before which there are `number` lines; update a hash."""
    with open_regular(path) as file:
        file.seek(offset)
        head = b""
        while data := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(data) > MAX_LINE_BYTES:
                raise InputError(f"{path}: line {number} is longer than {MAX_LINE_BYTES // 2**20} MiB")
            if digest is not None:
                digest.update(data)
            head = head or data
            line = decode_text(data, str(path), number, offset, head)
            if number == 1 and not line.endswith("\n"):  # a text without LF: its lines may end with CR
                yield from ((0, part) for part in line.removesuffix("\r").split("\r"))
                return
            yield offset, line.removesuffix("\n").removesuffix("\r")
            offset += len(data)


def _sha256(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _parallel(source: Path, target: Path) -> Iterator[tuple[int, str | Tagged, str]]:
    if is_parsed(target):
        raise InputError(f"{target}: only the source file can be CoNLL-U: put it before {source}")
    sources: Sequence[str | Tagged] = read_parsed(source) if is_parsed(source) else read_lines(source)
    targets = read_lines(target)
    if len(sources) != len(targets):
        unit = "sentences" if is_parsed(source) else "lines"
        raise InputError(
            f"{source} has {len(sources)} {unit} but {target} has {len(targets)} lines: each source needs one target"
        )
    yield from zip(range(1, len(sources) + 1), sources, targets, strict=True)


def hold_out(
    examples: Sequence[Example], share: float, source: Callable[[Example], str], what: str = "text"
) -> tuple[list[Example], list[Example]]:
    """Split into (kept, held out) by a hash of the source, so that no source is in both.

    A source shared by most examples is held out last, unless the share is that large. `what` is the name of the source
    in messages.
    """
    counts = Counter(map(source, examples))
    sources = sorted(counts, key=lambda text: (counts[text] > max(share, 0.5) * len(examples), digest(text)))
    if len(examples) == 1:
        raise InputError("a single example is not enough to hold out some for validation: add examples")
    if len(sources) < 2:
        raise InputError(f"all examples have the same {what}, so none can be held out: provide a validation file")
    held_out = set(sources[: max(1, min(MAX_HELD_OUT, round(share * len(sources)), len(sources) - 1))])
    kept = [example for example in examples if source(example) not in held_out]
    return kept, [example for example in examples if source(example) in held_out]


def split_by_source(
    pairs: Sequence[Pair], valid: int, test: int, key: Callable[[str], str] = str.casefold
) -> dict[str, list[Pair]]:
    """Hold out sources for valid and test by a hash of their `key`, so that no source is in two splits."""
    sources = sorted({key(pair.source) for pair in pairs}, key=digest)
    split_of = dict.fromkeys(sources[:valid], "valid") | dict.fromkeys(sources[valid : valid + test], "test")
    splits: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for pair in pairs:
        splits[split_of.get(key(pair.source), "train")].append(pair)
    return splits


def split_of(text: str, hashed_bytes: int = 4) -> Split:
    """Return the split of a text by its hash: 80 % train, 10 % valid, 10 % test."""
    bucket = int.from_bytes(digest(text)[:hashed_bytes], "big") % 10
    return "test" if bucket == 0 else "valid" if bucket == 1 else "train"


def digest(text: str) -> bytes:
    """SHA-256 of a text, which determines its split."""
    return hashlib.sha256(text.encode()).digest()
