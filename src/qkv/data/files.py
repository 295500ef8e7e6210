"""A user's own pairs, from one TSV file or from two files side by side, of which the first may be parsed sentences."""

import codecs
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from qkv.data.pair import Pair
from qkv.data.tagged import Tagged, parse_conllu, text_of
from qkv.errors import InputError
from qkv.runtime.files import read_regular

MOST_HELD_OUT = 1000
PARSED = ".conllu"  # how the names of files in CoNLL-U end

Example = TypeVar("Example")


@dataclass(frozen=True)
class ReadPairs:
    """The pairs of one or two files, and what was passed over."""

    pairs: list[Pair]
    notes: tuple[str, ...]


def read_pairs(paths: Sequence[Path], *, strict: bool = False, labelled: bool = False) -> ReadPairs:
    """Read a TSV (source, tab, target) or a source and a target file; a line with an empty side is skipped and noted.

    With `strict` such a line is an error. Sources in a file *.conllu come with their words and heads. Where the targets
    are labels of the sources (`labelled`), space around them is no part of them: "good " is no other label than "good".
    """
    what, columns = ("texts with labels", "text, one tab, label") if labelled else ("pairs", "source, one tab, target")
    numbered: list[tuple[int, str | Tagged, str]]
    if len(paths) == 1:
        numbered, name = list(_tsv(paths[0], columns)), str(paths[0])
    elif len(paths) == 2:
        numbered, name = list(_parallel(*paths)), f"{paths[0]} and {paths[1]}"
    else:
        raise InputError(f"{what} come from one TSV file or from two files, not from {len(paths)}")
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
    note = f"{name}: skipped {len(empty)} line(s) with an empty side, the first at line {empty[0] if empty else 0}"
    return ReadPairs(pairs, (note,) if empty else ())


def is_parsed(path: Path) -> bool:
    """Whether a file is one of CoNLL-U, by its name."""
    return path.suffix.lower() == PARSED


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file; errors name the file, and the byte where it is not UTF-8."""
    return decode_lines(read_regular(path), str(path))


def read_parsed(path: Path) -> list[Tagged]:
    """The sentences of a file of CoNLL-U, at least one."""
    found = parse_conllu(read_lines(path), str(path))
    if not found:
        raise InputError(f"{path}: no sentences found")
    return found


def read_text(path: Path) -> str:
    """A UTF-8 text file as it is, to the last line break."""
    return decode_text(read_regular(path), str(path))


def decode_lines(data: bytes, name: str) -> list[str]:
    """The lines of UTF-8 text that came from `name`, which opens every error message."""
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        raise InputError(f"{name}: is empty")
    return [line.removesuffix("\r") for line in decode_text(data, name).removesuffix("\n").split("\n")]


def decode_text(data: bytes, name: str) -> str:
    """UTF-8 text that came from `name`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        offset = error.start + (3 if data.startswith(codecs.BOM_UTF8) else 0)
        line = data.count(b"\n", 0, offset) + 1
        raise InputError(
            f"{name}: not UTF-8 at byte {offset} (0x{data[offset]:02x}), line {line}: convert it first, e.g. with iconv"
        ) from None


def _tsv(path: Path, expected: str) -> Iterator[tuple[int, str, str]]:
    if is_parsed(path):
        raise InputError(f"{path}: has no targets: after it, give a file with a target for each of its sentences")
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t") if line.strip() else ["", ""]
        if len(columns) != 2:
            raise InputError(f"{path}: line {number} has {len(columns)} column(s); expected {expected}")
        yield number, columns[0], columns[1]


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
