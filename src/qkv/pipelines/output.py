"""The output of a pipeline: an answer and its attention maps."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from qkv.errors import InputError
from qkv.runtime.notebook import Drawable, quoted

WORD = re.compile(r"\S+")
NO_COPYING = "this model does not copy words: train one with --set model.copying=true"


def region_names(grid: tuple[int, int]) -> tuple[str, ...]:
    """Return "row,column" of each cell of a grid over an image, row by row, counted from 1."""
    rows, columns = grid
    return tuple(f"{row},{column}" for row in range(1, rows + 1) for column in range(1, columns + 1))


@dataclass(frozen=True, repr=False)
class AttentionMap(Drawable):
    """Attention weights of one layer: rows are outputs (queries), columns inputs (keys)."""

    layer: str  # the layer's name, such as "decoder" or "decoder.1.cross"
    rows: tuple[str, ...]  # display text of each query
    columns: tuple[str, ...]  # display text of each key
    weights: Float[np.ndarray, "heads rows columns"]
    copied: Float[np.ndarray, "rows"] | None = None  # probability that each row was copied from the columns

    def __repr__(self) -> str:
        heads, rows, columns = np.shape(self.weights)
        return f"AttentionMap({quoted(self.layer)}, {heads} head(s), {rows} rows, {columns} columns)"

    @property
    def shape(self) -> tuple[int, ...]:
        """Heads, rows and columns."""
        return np.shape(self.weights)

    @property
    def average(self) -> Float[np.ndarray, "rows columns"]:
        """The weights with the heads averaged."""
        return self.weights.mean(axis=0)

    def by_words(self, output_text: str, input_text: str) -> "AttentionMap":
        """Aggregate the weights from tokens to the words of the output and input texts.

        w_TS = mean_{t in T} sum_{s in S} a_ts: summed over the tokens of an input word, averaged over those of an
        output word. Rows that sum to one still do.
        """
        row_words, column_words = _words_of(self.rows, output_text), _words_of(self.columns, input_text)
        rows, columns = WORD.findall(output_text), WORD.findall(input_text)
        sum_columns = np.zeros((len(self.columns), len(columns)))
        sum_columns[np.arange(len(column_words)), column_words] = 1.0
        mean_rows = np.zeros((len(rows), len(self.rows)))
        mean_rows[row_words, np.arange(len(row_words))] = 1.0
        mean_rows /= np.maximum(mean_rows.sum(axis=1, keepdims=True), 1.0)
        weights = (mean_rows @ self.weights @ sum_columns).astype(self.weights.dtype)
        copied = None if self.copied is None else mean_rows @ self.copied
        return AttentionMap(self.layer, tuple(rows), tuple(columns), weights, copied)

    def pharaoh(self, threshold: float | None = None) -> str:
        """The alignment in Pharaoh format, "source-target" pairs of indices: "0-0 2-1 1-2".

        Each row is aligned to its column of greatest weight, or with a threshold to all columns that reach it.
        """
        if threshold is not None and not 0 < threshold <= 1:
            raise InputError(f"an alignment threshold must be in (0, 1], not {threshold}")
        weights = self.average
        best = weights.max(axis=1, keepdims=True, initial=0.0) if threshold is None else threshold
        links = (weights >= best) & (weights > 0)
        if threshold is None:  # break ties in favor of the first column
            links &= links.cumsum(axis=1) == 1
        return " ".join(f"{column}-{row}" for row, column in np.argwhere(links))


class Candidate(NamedTuple):
    """A possible label, tag, token or span."""

    text: str
    probability: float


class Prediction(NamedTuple):
    """What a model predicts for an input, or for a part of it, such as a masked token."""

    part: str  # display text of the part; empty for the whole input
    candidates: tuple[Candidate, ...]  # most probable first


AttentionMaps = tuple[AttentionMap, ...]  # of the layers; the first one is the alignment to show by default


@dataclass(frozen=True, repr=False)
class Answer(Drawable):
    """One answer to one input."""

    source: str
    text: str
    score: float  # log-probability, divided by length ** length_penalty, plus any coverage penalty
    maps: AttentionMaps | Callable[[], AttentionMaps] = field(default=(), repr=False, compare=False)
    unknown: tuple[str, ...] = ()  # characters of the source that are not in the vocabulary
    new_tokens: int = 0  # number of generated tokens, without the end token
    special: tuple[str, ...] = ()  # display text of the special tokens, such as [CLS] and </s>
    predictions: tuple[Prediction, ...] = ()  # with probabilities; empty for a generated text
    notes: tuple[str, ...] = ()  # sentences on the input, such as that it was truncated

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([quoted(self.text), *self.details])})"

    def table_row(self) -> tuple[str, str, str]:
        return self.source, self.text, f"{self.score:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data; `qkv translate --json` also prints its alignment."""
        fields = {"source": self.source, "text": self.text, "score": round(self.score, 6)}
        return {**fields, "unknown": list(self.unknown)}

    @property
    def details(self) -> list[str]:
        """The parts of the repr after the text: the score, and the attention maps if they have been computed."""
        maps = self.maps if isinstance(self.maps, tuple) else vars(self).get("attention", ())
        shape = [f"attention {list(np.shape(maps[0].weights))} in {len(maps)} layer(s)"] if maps else []
        return [f"score {self.score:.4g}", *shape]

    @cached_property
    def attention(self) -> AttentionMaps:
        """The attention maps of all layers, computed on first access; empty for a model without attention."""
        return self.maps() if callable(self.maps) else self.maps

    @property
    def alignment(self) -> Float[np.ndarray, "rows columns"] | None:
        """The first map averaged over heads: [output tokens, input tokens]."""
        return self.attention[0].average if self.attention else None

    def words(self) -> AttentionMap:
        """The first map between words: `answer.words().pharaoh()`, `answer.words().average`."""
        if not self.attention:
            raise InputError("this answer has no attention: use a model with attention")
        return self.attention[0].by_words(self.text, self.source)

    def mark_copied(self, threshold: float = 0.5) -> str:
        """The text with brackets around words copied with at least this probability: "[Amanda] baked [cookies]"."""
        words = self.words()
        if words.copied is None:
            raise InputError(NO_COPYING)
        marked = (f"[{word}]" if p >= threshold else word for word, p in zip(words.rows, words.copied, strict=True))
        return " ".join(marked)


def _words_of(pieces: Sequence[str], text: str) -> list[int]:
    """Index of the word each piece belongs to; a space belongs to the word after it."""
    ends = [word.end() for word in WORD.finditer(text)]
    if not ends:
        return []
    words, position = [], 0
    for piece in pieces:
        inside = piece.strip()
        start = text.find(inside, position) if inside else -1
        offset = position if start < 0 else start
        words.append(min(bisect_right(ends, offset), len(ends) - 1))
        position = offset + (len(inside) if start >= 0 else 0)
    return words
