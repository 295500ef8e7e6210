"""What a task gives back: an answer, and what the model attended to while making it."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float

from qkv.errors import InputError

WORD = re.compile(r"\S+")
MOST_CELLS = 10_000  # of an alignment that a notebook shows token by token; a longer one it shows by words


@dataclass(frozen=True)
class AttentionMap:
    """The attention of one layer: each row (what was written) over each column (what was read)."""

    layer: str  # the layer's name, such as "decoder" or "decoder.1.cross"
    rows: tuple[str, ...]  # one text for each query
    columns: tuple[str, ...]  # one text for each key
    weights: Float[np.ndarray, "heads rows columns"]

    @property
    def average(self) -> Float[np.ndarray, "rows columns"]:
        """The weights with the heads averaged."""
        return self.weights.mean(axis=0)

    def by_words(self, written: str, read: str) -> "AttentionMap":
        """The same attention from words to words of the texts that rows and columns are pieces of.

        w_TS = mean_{t in T} sum_{s in S} a_ts: a word is read as much as all of its pieces together, and reads as much
        as its pieces do on average. So the rows of words sum to one where those of tokens do.
        """
        of_row, of_column = _words_of(self.rows, written), _words_of(self.columns, read)
        rows, columns = WORD.findall(written), WORD.findall(read)
        into = np.zeros((len(self.columns), len(columns)))
        into[np.arange(len(of_column)), of_column] = 1.0
        mean = np.zeros((len(rows), len(self.rows)))
        mean[of_row, np.arange(len(of_row))] = 1.0
        mean /= np.maximum(mean.sum(axis=1, keepdims=True), 1.0)
        weights = (mean @ self.weights @ into).astype(self.weights.dtype)
        return AttentionMap(self.layer, tuple(rows), tuple(columns), weights)

    def pharaoh(self, threshold: float | None = None) -> str:
        """The alignment as pairs "source-target" of places: "0-0 2-1 1-2".

        For each row the column with the greatest weight; with a threshold, all whose weight reaches it instead.
        """
        if threshold is not None and not 0 < threshold <= 1:
            raise InputError(f"an alignment threshold must be above 0 and at most 1, not {threshold}")
        weights = self.average
        best = weights.max(axis=1, keepdims=True, initial=0.0) if threshold is None else threshold
        links = (weights >= best) & (weights > 0)
        if threshold is None:  # of several that are best, the first
            links &= links.cumsum(axis=1) == 1
        return " ".join(f"{column}-{row}" for row, column in np.argwhere(links))


@dataclass(frozen=True)
class Answer:
    """One answer to one input, best first where several were asked for."""

    source: str
    text: str
    score: float  # log-probability, divided by length ** length_penalty, plus any coverage penalty
    maps: tuple[AttentionMap, ...] = ()  # the first one is the alignment that a person should see first
    unknown: tuple[str, ...] = ()  # characters of the source that the model never saw

    @property
    def alignment(self) -> Float[np.ndarray, "rows columns"] | None:
        """The first map with its heads averaged: how much each output token read each input token."""
        return self.maps[0].average if self.maps else None

    def words(self) -> AttentionMap:
        """The first map from words to words: `answer.words().pharaoh()`, `answer.words().average`."""
        if not self.maps:
            raise InputError("this answer carries no attention: ask for it, of a model that has some")
        return self.maps[0].by_words(self.text, self.source)

    def _repr_html_(self) -> str:
        """How a notebook shows it: the text and, if it carries attention, its alignment as a table of shades."""
        said = f"<p>{escape(self.source)} → <b>{escape(self.text)}</b></p>"
        if not self.maps:
            return said
        first = self.maps[0]
        shown = first if first.average.size <= MOST_CELLS else self.words()
        heading = "".join(f"<th>{_visible(column)}</th>" for column in shown.columns)
        rows = (
            f"<tr><th>{_visible(row)}</th>{''.join(map(_cell, weights))}</tr>"
            for row, weights in zip(shown.rows, shown.average, strict=True)
        )
        return f"{said}<table><tr><th></th>{heading}</tr>{''.join(rows)}</table>"


def _visible(token: str) -> str:
    return escape(token.replace(" ", "␣"))


def _cell(weight: float) -> str:
    return f'<td title="{weight:.3f}" style="background: rgba(33, 102, 172, {weight:.3f})"></td>'


def _words_of(pieces: Sequence[str], text: str) -> list[int]:
    """The number of the word that each piece of a text belongs to; a space belongs to the word after it."""
    ends = [word.end() for word in WORD.finditer(text)]
    if not ends:
        return []
    numbers, here = [], 0
    for piece in pieces:
        inside = piece.strip()
        found = text.find(inside, here) if inside else -1
        at = here if found < 0 else found
        numbers.append(min(bisect_right(ends, at), len(ends) - 1))
        here = at + (len(inside) if found >= 0 else 0)
    return numbers
