"""Tagged sentences, and their file formats.

CoNLL columns    one word per line, its tag in the last column, an empty line between sentences; lines that begin with
                 -DOCSTART- mark documents and are skipped
CoNLL-U          ten columns; the fourth is the part of speech, the seventh the head, and the eighth the dependency
                 relation
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkv.errors import InputError
from qkv.runtime.text import printable

DOCUMENT_START = "-DOCSTART-"  # first column of a line between documents
UNSPECIFIED = "_"  # of a CoNLL-U field
FORM, HEAD = 1, 6  # columns of CoNLL-U
TAG_COLUMNS = {"upos": 3, "xpos": 4, "deprel": 7}
MAX_SHOWN = 80  # characters of a line in an error message
NOT_A_WORD = re.compile(r"\d+[-.]\d+")  # id of a multiword token or an empty node


@dataclass(frozen=True, slots=True)
class Tagged:
    """The words of a sentence with a tag each; `heads` are 1-based indices of the governing words (0: root)."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        """The words joined with spaces."""
        return " ".join(self.words)


def text_of(source: str | Tagged) -> str:
    """Return the text of a plain or parsed source."""
    return source if isinstance(source, str) else source.text


def parse_columns(lines: Sequence[str], where: str) -> list[Tagged]:
    """Parse CoNLL columns; all lines must have the same number of columns, except those that mark documents."""
    tagged = []
    columns = 0
    for sentence in _sentences(["" if line.startswith(DOCUMENT_START) else line for line in lines]):
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
                    "comments, or name the file *.conllu if it is CoNLL-U"
                )
        tagged.append(Tagged(tuple(row[0] for row in rows), tuple(row[-1] for row in rows)))
    return tagged


def tagged_of_row(tokens: str | list[str], tags: str | list[str], where: str) -> Tagged | None:
    """Return the sentence of a row of a table: lists, or texts separated by spaces; None without words."""
    words, labels = (
        tuple(cell.split()) if isinstance(cell, str) else tuple(item.strip() for item in cell)
        for cell in (tokens, tags)
    )
    if len(words) != len(labels):
        raise InputError(f"{where} has {len(words)} word(s) but {len(labels)} tag(s): each word needs one")
    if not all(words) or not all(labels):
        raise InputError(f"{where} has an empty word or tag")
    return Tagged(words, labels) if words else None


def _short(line: str) -> str:
    return printable(repr(line), MAX_SHOWN)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def parse_conllu(lines: Sequence[str], where: str, column: str = "upos") -> list[Tagged]:
    """Parse CoNLL-U with a column as tags; multiword tokens and empty nodes, which are never heads, are skipped."""
    tag = TAG_COLUMNS[column]
    tagged = []
    for sentence in _sentences(lines):
        rows = []
        for number, line in sentence:
            row = line.split("\t")
            if line.startswith("#") or NOT_A_WORD.fullmatch(row[0]):
                continue
            if len(row) != 10 or not _is_number(row[0]) or not (_is_number(row[HEAD]) or row[HEAD] == UNSPECIFIED):
                raise InputError(
                    f"{where}: line {number} is not CoNLL-U (ten columns, with a number or _ as head): {_short(line)}"
                )
            if not row[FORM].strip() or not row[tag].strip():
                raise InputError(f"{where}: line {number} has an empty word or tag: {_short(line)}")
            rows.append(row)
        has_heads = all(row[HEAD] != UNSPECIFIED for row in rows)
        heads = tuple(int(row[HEAD]) for row in rows) if has_heads else None
        problem = None if heads is None else _tree_problem(heads)
        if problem is not None:
            raise InputError(f"{where}: line {sentence[0][0]}: {problem}")
        if rows:
            tagged.append(Tagged(tuple(row[FORM] for row in rows), tuple(row[tag] for row in rows), heads))
    return tagged


def _tree_problem(heads: tuple[int, ...]) -> str | None:
    """Return why the heads are not a tree, or None if they are."""
    if any(head > len(heads) for head in heads):
        return "a head is not a word of the sentence"
    roots = heads.count(0)
    if heads and roots != 1:
        return f"the sentence has {roots} roots: exactly one word must have head 0"
    rooted: set[int] = {0}  # words with a known path to the root
    for word in range(1, len(heads) + 1):
        path: dict[int, None] = {}  # an ordered set
        while word not in rooted:
            if word in path:
                return f"the heads of the sentence have a cycle at word {word}"
            path[word] = None
            word = heads[word - 1]
        rooted.update(path)
    return None


def _sentences(lines: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """Yield the numbered lines of each sentence, which are separated by blank lines."""
    sentence: list[tuple[int, str]] = []
    for number, line in enumerate([*lines, ""], start=1):
        if line.strip():
            sentence.append((number, line))
        elif sentence:
            yield sentence
            sentence = []
