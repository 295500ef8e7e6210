"""BPE-dropout: a word is cut into subwords differently each time it is read (Provilkov et al. 2020).

    in each step every merge that could be made is left out with probability p; of the others the one that was learned
    first is made; the word is done when none is left

With p = 0 this is byte-pair encoding, with p = 1 the word stays in characters. The `tokenizers` library draws from a
generator that cannot be seeded; here one seed gives one result.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from qkv.errors import InputError

Numbers = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max  # the rank of two tokens that do not merge
Seed = int | tuple[int, ...]


class MergeDropout:
    """The merges of a byte-pair tokenizer, made for all words at once."""

    def __init__(self, tokenizer: Tokenizer, unknown: int) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        if model["type"] != "BPE":
            raise InputError("only a bpe vocabulary has merges to leave out: use vocabulary bpe:N, or no dropout")
        self._tokenizer = tokenizer
        self._numbers: dict[str, int] = model["vocab"]
        self._unknown = unknown
        merges = [(self._numbers[a], self._numbers[b], self._numbers[a + b]) for a, b in model["merges"]]
        left, right, whole = np.array(merges, dtype=np.int64).reshape(-1, 3).T
        order = np.argsort(left * len(self._numbers) + right)
        self._keys = (left * len(self._numbers) + right)[order]
        self._ranks, self._wholes = order, whole
        self._words: dict[str, int] = {}  # every word met, by its number
        self._characters: list[list[int]] = []  # of each word
        self._texts: dict[str, list[int]] = {}  # every text met, as words

    def encode(self, texts: Sequence[str], dropout: float, seed: Seed) -> list[list[int]]:
        """The token numbers of each text, drawn from the seed."""
        if not 0 <= dropout <= 1:
            raise InputError(f"the dropout of merges must lie between 0 and 1, not {dropout}")
        generator = np.random.default_rng(seed)
        words = [self._read(text) for text in texts]
        flat = np.fromiter(chain.from_iterable(words), dtype=np.int64)
        lengths = np.array([len(characters) for characters in self._characters], dtype=np.int64)[flat]
        # The tokens of a word take the first places of its characters' room; the others stay empty.
        ends = np.cumsum(lengths)
        room = np.full(ends[-1] if len(ends) else 0, -1, dtype=np.int64)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            tokens = np.array([self._characters[word] for word in flat[rows]], dtype=np.int64)
            for done, cut in self._merge(tokens, dropout, generator):
                begins = ends[rows[done]] - length
                room[begins[:, None] + np.arange(cut.shape[1])] = cut
        borders = np.concatenate([[0], ends])[np.cumsum([0, *map(len, words)])]
        filled = np.concatenate([[0], np.cumsum(room >= 0)])[borders].tolist()
        tokens_in_order = room[room >= 0].tolist()
        return [tokens_in_order[begin:end] for begin, end in pairwise(filled)]

    def _merge(
        self, tokens: Numbers, dropout: float, generator: np.random.Generator
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Merge words of one length, [words, length]; gives those that are done, as (which, their tokens).

        Each step makes one merge in every word that is not done, so that all of these stay equally long.
        """
        which = np.arange(len(tokens))
        ranks = self._rank(tokens[:, :-1], tokens[:, 1:])
        while tokens.shape[1] > 1 and len(tokens):
            dropped = generator.random(ranks.shape, dtype=np.float32) < dropout
            candidates = np.where(dropped, NEVER, ranks)
            place = candidates.argmin(axis=1)
            rank = candidates[np.arange(len(place)), place]
            going = rank < NEVER
            yield which[~going], tokens[~going]
            which, tokens, ranks, place, rank = which[going], tokens[going], ranks[going], place[going], rank[going]
            row = np.arange(len(which))
            tokens[row, place] = self._wholes[rank]
            tokens = _without_column(tokens, place + 1)
            ranks = _without_column(ranks, place)
            for at, exists in ((place - 1, place > 0), (place, place < ranks.shape[1])):
                row_at, at = row[exists], at[exists]
                ranks[row_at, at] = self._rank(tokens[row_at, at], tokens[row_at, at + 1])
        yield which, tokens

    def _rank(self, left: Numbers, right: Numbers) -> Numbers:
        """Which merge joins the two, the first learned being 0; NEVER where none does."""
        if not len(self._keys):
            return np.full(left.shape, NEVER)
        wanted = left * len(self._numbers) + right
        found = np.searchsorted(self._keys, wanted).clip(max=len(self._keys) - 1)
        return np.where(self._keys[found] == wanted, self._ranks[found], NEVER)

    def _read(self, text: str) -> list[int]:
        """The words of a text, by their numbers."""
        if text not in self._texts:
            normalizer = self._tokenizer.normalizer
            normal = text if normalizer is None else normalizer.normalize_str(text)
            pieces = self._tokenizer.pre_tokenizer.pre_tokenize_str(normal)
            self._texts[text] = [self._number(word) for word, _ in pieces]
        return self._texts[text]

    def _number(self, word: str) -> int:
        if word not in self._words:
            self._words[word] = len(self._characters)
            numbers = [self._numbers.get(character, self._unknown) for character in word]
            # A run of unknown characters is one unknown token, as the library has it.
            self._characters.append(
                [n for n, before in zip(numbers, [-1, *numbers], strict=False) if n != self._unknown or n != before]
            )
        return self._words[word]


def _without_column(table: Numbers, column: Numbers) -> Numbers:
    """Leave out one column of each row: [rows, columns] -> [rows, columns - 1]."""
    kept = np.arange(table.shape[1] - 1)
    return np.take_along_axis(table, kept + (kept >= column[:, None]), axis=1)
