"""Constituency trees in brackets, and their linearization as a sequence of symbols.

    (TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps))))

    (S  (NP  DT  NN  )NP  (VP  VBZ  )VP  )S          the linearization of Vinyals et al. (2015), without the root

Trees are flat tuples of words, tags and spans, and everything here is a loop: no tree is too deep for Python's stack.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.runtime.text import printable

ROOT = "TOP"
ROOTS = (ROOT, "ROOT", "")  # labels of a root that is left out if it has a single child
NO_TAG = "XX"  # terminal of a linearization without tags
MAX_WORDS = 2000  # of a tree; the longest real ones have a few hundred
MAX_DEPTH = 200  # of nested constituents
MAX_SYMBOL = 1000  # characters of a word or label
TOKEN = re.compile(r"[()]|[^\s()]+")
ESCAPES = {"(": "-LRB-", ")": "-RRB-", "{": "-LCB-", "}": "-RCB-"}  # of words that are brackets


class Constituent(NamedTuple):
    """A label, and the words [start, end) that it covers."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A constituency tree; its constituents are in the order of their opening brackets, without the root."""

    words: tuple[str, ...]
    tags: tuple[str, ...]  # of the words
    constituents: tuple[Constituent, ...]

    @classmethod
    def parse(cls, text: str, where: str) -> "Tree":
        """Parse a bracketed tree; error messages start with `where`."""
        tokens = TOKEN.findall(text)
        if not tokens or tokens[0] != "(":
            raise InputError(f"{where}: expected a tree that begins with '(', not {printable(repr(text[:80]))}")
        if (longest := max(map(len, tokens))) > MAX_SYMBOL:
            raise InputError(f"{where}: a word or label has {longest:,} characters, more than {MAX_SYMBOL:,}")
        symbols, words = _read_symbols(tokens, where)
        tree = cls.from_symbols(symbols, words, where)
        if tree.constituents and tree.constituents[0].label in ROOTS and _has_one_child(symbols):
            return cls(tree.words, tree.tags, tree.constituents[1:])
        return tree

    @classmethod
    def from_symbols(cls, symbols: Sequence[str], words: Sequence[str], where: str) -> "Tree":
        """Return the tree with this linearization, whose terminals are the tags of the words."""
        constituents: list[Constituent] = []
        opened: list[int] = []  # indices of the constituents that are open
        tags: list[str] = []
        for symbol in symbols:
            if symbol.startswith("("):
                opened.append(len(constituents))
                constituents.append(Constituent(symbol[1:], len(tags), -1))
                if len(opened) > MAX_DEPTH:
                    raise InputError(f"{where}: the tree is deeper than {MAX_DEPTH} constituents")
            elif symbol.startswith(")"):
                if not opened or constituents[opened[-1]].label != symbol[1:]:
                    raise InputError(f"{where}: {symbol} closes no constituent")
                index = opened.pop()
                constituents[index] = constituents[index]._replace(end=len(tags))
                if constituents[index].start == len(tags):
                    raise InputError(f"{where}: the constituent {symbol[1:] or '()'} is empty")
            else:
                tags.append(symbol)
        if opened:
            raise InputError(f"{where}: {len(opened)} bracket(s) are not closed")
        if len(tags) != len(words):
            raise InputError(f"{where}: {len(tags)} terminals for {len(words)} words")
        return cls(tuple(words), tuple(tags), tuple(constituents))

    @property
    def text(self) -> str:
        """The words joined with spaces."""
        return " ".join(self.words)

    @property
    def source_input(self) -> Tagged:
        """Input of a parser: the words."""
        return Tagged(self.words, self.tags)

    def symbols(self, *, tags: bool = True) -> list[str]:
        """Return the linearization; its terminals are the tags, or XX."""
        return [symbol if index is None or tags else NO_TAG for symbol, index in self._events()]

    def _events(self) -> Iterator[tuple[str, int | None]]:
        """Yield each symbol of the linearization, with the index of the word for a terminal."""
        opened: list[Constituent] = []
        remaining = iter(self.constituents)
        constituent = next(remaining, None)
        for index, tag in enumerate(self.tags):
            while constituent is not None and constituent.start == index:
                opened.append(constituent)
                yield f"({constituent.label}", None
                constituent = next(remaining, None)
            yield tag, index
            while opened and opened[-1].end == index + 1:
                yield f"){opened.pop().label}", None

    def __str__(self) -> str:
        parts = [
            ")" if symbol.startswith(")") else f" {symbol}" if index is None else f" ({symbol} {self.words[index]})"
            for symbol, index in self._events()
        ]
        return f"({ROOT}{''.join(parts)})"


def parse_trees(lines: Sequence[str], where: str) -> list[Tree]:
    """Parse the trees of a file, one on each line; blank lines are skipped."""
    return [Tree.parse(line, f"{where}: line {number}") for number, line in enumerate(lines, start=1) if line.strip()]


def escape_brackets(word: str) -> str:
    """Return a word as treebanks write it: a bracket is -LRB- or -RRB-."""
    word = ESCAPES.get(word, word)
    return word.replace("(", ESCAPES["("]).replace(")", ESCAPES[")"])


def _read_symbols(tokens: Sequence[str], where: str) -> tuple[list[str], list[str]]:
    """Return the linearization of a bracketed tree, root included, and its words."""
    symbols, words, labels = list[str](), list[str](), list[str]()
    index = 0
    while index < len(tokens):
        token, rest = tokens[index], tokens[index + 1 : index + 4]
        if symbols and not labels:
            raise InputError(f"{where}: unexpected {printable(repr(token), 40)} after the tree")
        if token == "(" and len(rest) == 3 and rest[2] == ")" and not {*rest[:2]} & {"(", ")"} and labels:
            symbols.append(rest[0])
            words.append(rest[1])
            index += 4
            if len(words) > MAX_WORDS:
                raise InputError(f"{where}: the tree has more than {MAX_WORDS:,} words")
        elif token == "(":
            labels.append("" if rest[:1] in ([], ["("], [")"]) else rest[0])
            symbols.append(f"({labels[-1]}")
            index += 2 if labels[-1] else 1
        elif token == ")":
            symbols.append(f"){labels.pop()}")
            index += 1
        else:
            raise InputError(
                f"{where}: the word {printable(repr(token), 40)} has no tag: write (TAG {printable(token, 40)})"
            )
    if labels:
        raise InputError(f"{where}: {len(labels)} bracket(s) are not closed")
    return symbols, words


def _has_one_child(symbols: Sequence[str]) -> bool:
    """Whether the root of a linearization has a single child."""
    depth = children = 0
    for symbol in symbols[1:-1]:
        children += depth == 0 and not symbol.startswith(")")
        depth += symbol.startswith("(") - symbol.startswith(")")
    return children == 1
