"""A user's own pairs, from a table of two columns or from two parallel files, of which the first may be CoNLL-U."""

import codecs
import hashlib
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from qkv.data.pair import Pair
from qkv.data.rows import Row, parse_rows
from qkv.data.sniff import binary_kind, is_heading, looks_tagged
from qkv.data.tagged import Tagged, parse_conllu, text_of
from qkv.errors import InputError
from qkv.runtime.files import read_regular

MOST_HELD_OUT = 1000
PARSED = ".conllu"  # how the names of files in CoNLL-U end

Example = TypeVar("Example")


@dataclass(frozen=True)
class ReadPairs:
    """The pairs of one or two files, and notes about lines that were skipped."""

    pairs: list[Pair]
    notes: tuple[str, ...]


def read_pairs(paths: Sequence[Path], *, strict: bool = False, labelled: bool = False) -> ReadPairs:
    """Read a table of two columns (TSV, *.csv, *.jsonl), or a source and a target file.

    A heading and lines with an empty side are skipped with a note; with `strict` they are errors. Sources in a file
    *.conllu come with their words and heads. Where the targets are labels of the sources (`labelled`), white space
    around them is removed.
    """
    what, keys = ("texts with labels", ("text", "label")) if labelled else ("pairs", ("source", "target"))
    numbered: Sequence[tuple[int, str | Tagged, str]]
    notes = []
    if len(paths) == 1:
        numbered, name = _table(paths[0], keys), str(paths[0])
        if looks_tagged([f"{source}\t{target}" if source or target else "" for _, source, target in numbered]):
            notes.append(f"{name}: looks like words and tags in CoNLL columns, but is read as {what}")
    elif len(paths) == 2:
        numbered, name = list(_parallel(*paths)), f"{paths[0]} and {paths[1]}"
    else:
        raise InputError(f"{what} come from one TSV file or from two files, not from {len(paths)}")
    if numbered and is_heading(text_of(numbered[0][1]), numbered[0][2], {target for _, _, target in numbered[1:]}):
        heading = f"{name}: line {numbered[0][0]} is a heading ({text_of(numbered[0][1])}, {numbered[0][2]})"
        if strict:
            raise InputError(f"{heading}: remove it")
        notes.append(f"{heading}: skipped")
        numbered = numbered[1:]
    pairs, empty = [], []
    for number, given, target in numbered:
        source = text_of(given)
        if source.strip() and target.strip():
            parsed = given if isinstance(given, Tagged) else None
            pairs.append(Pair(source, target.strip() if labelled else target, parsed=parsed))
        else:
            empty.append(number)
    if empty and strict:
        raise InputError(f"{name}: line {empty[0]} has an empty side ({len(empty)} such line(s))")
    if not pairs:
        raise InputError(f"{name}: no {what} found")
    if empty:
        notes.append(f"{name}: skipped {len(empty)} line(s) with an empty side, the first at line {empty[0]}")
    return ReadPairs(pairs, tuple(notes))


def is_parsed(path: Path) -> bool:
    """Whether a file is one of CoNLL-U, by its name."""
    return path.suffix.lower() == PARSED


def read_data(path: Path) -> bytes:
    """Read a data file; not a pipe, because a run that is resumed or evaluated reads its data again."""
    try:
        piped = stat.S_ISFIFO(path.stat().st_mode)
    except (OSError, ValueError):
        piped = False  # read_regular says what is wrong
    if piped:
        raise InputError(f"{path}: is a pipe: save its output to a file first")
    try:
        return read_regular(path)
    except MemoryError:
        raise InputError(f"{path}: is too large for the memory of this machine") from None


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file; errors name the file, and the byte where it is not UTF-8."""
    return decode_lines(read_data(path), str(path))


def read_parsed(path: Path) -> list[Tagged]:
    """The sentences of a file of CoNLL-U, at least one."""
    found = parse_conllu(read_lines(path), str(path))
    if not found:
        raise InputError(f"{path}: no sentences found")
    return found


def read_text(path: Path) -> str:
    """A UTF-8 text file as it is, to the last line break."""
    return decode_text(read_data(path), str(path))


def decode_lines(data: bytes, name: str) -> list[str]:
    """The lines of UTF-8 text that came from `name`, which opens every error message.

    Lines end with LF or CR LF, or with CR where the text has no LF at all.
    """
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        raise InputError(f"{name}: is empty")
    text = decode_text(data, name)
    if "\n" not in text:
        text = text.replace("\r", "\n")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def decode_text(data: bytes, name: str) -> str:
    """UTF-8 text that came from `name`; binary data is an input error."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if kind := binary_kind(data):
            raise InputError(f"{name}: is a binary file ({kind}), expected text") from None
        offset = error.start + (3 if data.startswith(codecs.BOM_UTF8) else 0)
        line = data.count(b"\n", 0, offset) + 1
        raise InputError(
            f"{name}: not UTF-8 at byte {offset} (0x{data[offset]:02x}), line {line}: convert it first, e.g. with iconv"
        ) from None
    if (offset := data.find(b"\0")) >= 0:
        line = data.count(b"\n", 0, offset) + 1
        kind = binary_kind(data) or f"NUL at byte {offset}, line {line}"
        raise InputError(f"{name}: is a binary file ({kind}), expected text in UTF-8")
    return text


def _table(path: Path, keys: tuple[str, str]) -> list[Row]:
    if is_parsed(path):
        raise InputError(f"{path}: has no targets: after it, give a file with a target for each of its sentences")
    return list(parse_rows(read_lines(path), path.suffix, str(path), keys))


def _parallel(source: Path, target: Path) -> Iterator[tuple[int, str | Tagged, str]]:
    if is_parsed(target):
        raise InputError(f"{target}: parsed sentences are for sources: give it before {source}")
    unit = "sentence" if is_parsed(source) else "line"
    sources: Sequence[str | Tagged] = read_parsed(source) if unit == "sentence" else read_lines(source)
    targets = read_lines(target)
    sides = [(len(sources), source, unit), (len(targets), target, "line")]
    if len(sources) != len(targets):
        (fewer, shorter, one), (more, longer, other) = sorted(sides)
        raise InputError(
            f"{shorter} has {fewer} {one}s but {longer} has {more}{'' if one == other else f' {other}s'}: "
            f"{other} {fewer + 1} of {longer} has no partner"
        )
    yield from zip(range(1, len(sources) + 1), sources, targets, strict=True)


def hold_out(
    examples: Sequence[Example], share: float, source: Callable[[Example], str]
) -> tuple[list[Example], list[Example]]:
    """Split into (kept, held out) by a hash of the source, so that one source is never on both sides.

    A source that most of the examples have is the last to be held out, unless so much shall be.
    """
    often = Counter(map(source, examples))
    sources = sorted(often, key=lambda one: (often[one] > max(share, 0.5) * len(examples), digest(one)))
    if len(sources) < 2:
        raise InputError("one distinct source is not enough to hold any out for validation: give a validation file")
    held = set(sources[: max(1, min(MOST_HELD_OUT, round(share * len(sources)), len(sources) - 1))])
    return [one for one in examples if source(one) not in held], [one for one in examples if source(one) in held]


def split_by_source(pairs: Sequence[Pair], valid: int, test: int) -> dict[str, list[Pair]]:
    """Hold out so many sources for valid and test, by a hash of the source: no source is in two splits, in any case."""
    sources = sorted({pair.source.casefold() for pair in pairs}, key=digest)
    if len(sources) <= valid + test:
        raise InputError(f"{len(sources)} distinct sources are too few to hold out {valid} and {test} of them")
    split_of = dict.fromkeys(sources[:valid], "valid") | dict.fromkeys(sources[valid : valid + test], "test")
    splits: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for pair in pairs:
        splits[split_of.get(pair.source.casefold(), "train")].append(pair)
    return splits


def digest(text: str) -> bytes:
    """What decides the split of a text: its SHA-256."""
    return hashlib.sha256(text.encode()).digest()
