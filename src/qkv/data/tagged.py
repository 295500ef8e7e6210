"""Sentences with a tag for each word, and the files that they come in.

CoNLL columns    a word a line, its tag in the last column, a line without words between sentences
CoNLL-U          the same with ten columns, of which the fourth is the part of speech, the seventh the head, and the
                 eighth what the word is to its head, such as its subject
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkv.config import shown
from qkv.errors import InputError

UNKNOWN = "_"  # what CoNLL-U has where nothing is known
FORM, HEAD = 1, 6  # columns of CoNLL-U,
COLUMNS = {"upos": 3, "xpos": 4, "deprel": 7}  # and those that can be the tags
SHOWN = 80  # characters of a bad line in an error message
SEVERAL = re.compile(r"\d+[-.]\d+")  # the number of a word that stands for others, or that is not there


@dataclass(frozen=True, slots=True)
class Tagged:
    """The words of a sentence, and the tag of each; `heads` are the words that they depend on, from 1 (0: on none)."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        """The words, with a blank between them."""
        return " ".join(self.words)


def text_of(given: str | Tagged) -> str:
    """The text of what may be given in words, with their heads."""
    return given if isinstance(given, str) else given.text


def parse_columns(lines: Sequence[str], where: str) -> list[Tagged]:
    """The sentences of a file of CoNLL columns, of which every line has as many."""
    found = []
    columns = 0
    for sentence in _sentences(lines):
        rows = [line.split("\t") if "\t" in line else line.split() for _, line in sentence]
        for (number, line), row in zip(sentence, rows, strict=True):
            columns = columns or len(row)
            if len(row) < 2 or not row[0].strip() or not row[-1].strip():
                raise InputError(
                    f"{where}: line {number} has a word without a tag, or a tag without a word: {_short(line)}"
                )
            if len(row) != columns:
                raise InputError(
                    f"{where}: line {number} has {len(row)} columns, the first {columns}: {_short(line)}; remove "
                    "comments, and name a file of CoNLL-U *.conllu"
                )
        found.append(Tagged(tuple(row[0] for row in rows), tuple(row[-1] for row in rows)))
    return found


def _short(line: str) -> str:
    return shown(repr(line), SHOWN)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def parse_conllu(lines: Sequence[str], where: str, column: str = "upos") -> list[Tagged]:
    """The sentences of a file of CoNLL-U, with a column as tags; words that stand for several others, and words that
    are not there, are left out, as the heads leave them out."""
    tag = COLUMNS[column]
    found = []
    for sentence in _sentences(lines):
        rows = []
        for number, line in sentence:
            row = line.split("\t")
            if line.startswith("#") or SEVERAL.fullmatch(row[0]):
                continue
            if len(row) != 10 or not _is_number(row[0]) or not (_is_number(row[HEAD]) or row[HEAD] == UNKNOWN):
                raise InputError(
                    f"{where}: line {number} is no word of CoNLL-U (ten columns, a number or _ as head): {_short(line)}"
                )
            if not row[FORM].strip() or not row[tag].strip():
                raise InputError(f"{where}: line {number} has a word or a tag with nothing in it: {_short(line)}")
            rows.append(row)
        known = all(row[HEAD] != UNKNOWN for row in rows)
        heads = tuple(int(row[HEAD]) for row in rows) if known else None
        fault = None if heads is None else _fault(heads)
        if fault is not None:
            raise InputError(f"{where}: line {sentence[0][0]}: {fault}")
        if rows:
            found.append(Tagged(tuple(row[FORM] for row in rows), tuple(row[tag] for row in rows), heads))
    return found


def _fault(heads: tuple[int, ...]) -> str | None:
    """Why the heads of a sentence make no tree; None where they do."""
    if any(head > len(heads) for head in heads):
        return "a head of this sentence is not in it"
    roots = heads.count(0)
    if heads and roots != 1:
        return f"this sentence has {roots} roots: one word of a tree has head 0"
    below: set[int] = {0}  # the words from which the way up is known to end at the root
    for word in range(1, len(heads) + 1):
        way: dict[int, None] = {}  # a set that keeps its order
        while word not in below:
            if word in way:
                return f"word {word} of this sentence is above itself: its heads run in a circle"
            way[word] = None
            word = heads[word - 1]
        below.update(way)
    return None


def _sentences(lines: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """The lines between those that hold nothing but space, with their numbers."""
    sentence: list[tuple[int, str]] = []
    for number, line in enumerate([*lines, ""], start=1):
        if line.strip():
            sentence.append((number, line))
        elif sentence:
            yield sentence
            sentence = []
