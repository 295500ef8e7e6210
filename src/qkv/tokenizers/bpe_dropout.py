"""BPE-dropout: random segmentation of words into subwords (Provilkov et al. 2020).

    at each step, drop every applicable merge with probability p, and apply the remaining merge that was learned first;
    stop when none remains

With p = 0 this is byte-pair encoding, with p = 1 words are split into characters. The generator of the `tokenizers`
library cannot be seeded; this one is deterministic given the seed.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as Backend

from qkv.errors import InputError
from qkv.tokenizers.tokenizer import Seed

Ids = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max  # rank of two tokens without a merge


class MergeDropout:
    """Vectorized merges of a byte-pair tokenizer, for many words at once; `added` tokens are never split."""

    def __init__(self, backend: Backend, unk: int, added: Mapping[str, int]) -> None:
        model = json.loads(backend.to_str())["model"]
        self._backend = backend
        self._vocab: dict[str, int] = model["vocab"]
        self._unk = unk
        merges = [(self._vocab[a], self._vocab[b], self._vocab[a + b]) for a, b in model["merges"]]
        left, right, merged = np.array(merges, dtype=np.int64).reshape(-1, 3).T
        order = np.argsort(left * len(self._vocab) + right)
        self._keys = (left * len(self._vocab) + right)[order]
        self._ranks, self._merged = order, merged
        self._added = re.compile("|".join(f"({re.escape(token)})" for token in added) or "(?!)")
        self._words: dict[str, int] = {token: index for index, token in enumerate(added)}  # of each distinct word
        self._characters: list[list[int]] = [[token_id] for token_id in added.values()]  # token ids of each word
        self._texts: dict[str, list[int]] = {}  # word indices of each distinct text

    def encode(self, texts: Sequence[str], dropout: float, seed: Seed) -> list[list[int]]:
        """Return the token ids of each text, with segmentations sampled from the seed."""
        if not 0 <= dropout <= 1:
            raise InputError(f"dropout must be between 0 and 1, not {dropout}")
        generator = np.random.default_rng(seed)
        words = [self._split_words(text) for text in texts]
        flat = np.fromiter(chain.from_iterable(words), dtype=np.int64)
        lengths = np.array([len(characters) for characters in self._characters], dtype=np.int64)[flat]
        # Each word has one slot per character in the buffer; its tokens fill the first slots, the others stay -1.
        ends = np.cumsum(lengths)
        buffer = np.full(ends[-1] if len(ends) else 0, -1, dtype=np.int64)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            tokens = np.array([self._characters[word] for word in flat[rows]], dtype=np.int64)
            for finished, merged in self._merge(tokens, dropout, generator):
                starts = ends[rows[finished]] - length
                buffer[starts[:, None] + np.arange(merged.shape[1])] = merged
        boundaries = np.concatenate([[0], ends])[np.cumsum([0, *map(len, words)])]
        offsets = np.concatenate([[0], np.cumsum(buffer >= 0)])[boundaries].tolist()
        all_tokens = buffer[buffer >= 0].tolist()
        return [all_tokens[start:stop] for start, stop in pairwise(offsets)]

    def _merge(self, tokens: Ids, dropout: float, generator: np.random.Generator) -> Iterator[tuple[Ids, Ids]]:
        """Merge words of one length, [words, length]; yield (row indices, tokens) of the words as they finish.

        Each step applies one merge in every unfinished word, so that these all keep the same length.
        """
        indices = np.arange(len(tokens))
        ranks = self._rank(tokens[:, :-1], tokens[:, 1:])
        while tokens.shape[1] > 1 and len(tokens):
            dropped = generator.random(ranks.shape, dtype=np.float32) < dropout
            candidates = np.where(dropped, NEVER, ranks)
            position = candidates.argmin(axis=1)
            rank = candidates[np.arange(len(position)), position]
            active = rank < NEVER
            yield indices[~active], tokens[~active]
            indices, tokens, ranks = indices[active], tokens[active], ranks[active]
            position, rank = position[active], rank[active]
            row = np.arange(len(indices))
            tokens[row, position] = self._merged[rank]
            tokens = _without_column(tokens, position + 1)
            ranks = _without_column(ranks, position)
            for column, exists in ((position - 1, position > 0), (position, position < ranks.shape[1])):
                row_at, column = row[exists], column[exists]
                ranks[row_at, column] = self._rank(tokens[row_at, column], tokens[row_at, column + 1])
        yield indices, tokens

    def _rank(self, left: Ids, right: Ids) -> Ids:
        """Return the rank of the merge of two tokens, 0 for the first learned; NEVER if there is none."""
        if not len(self._keys):
            return np.full(left.shape, NEVER)
        keys = left * len(self._vocab) + right
        index = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        return np.where(self._keys[index] == keys, self._ranks[index], NEVER)

    def _split_words(self, text: str) -> list[int]:
        """Return the indices of the words of a text."""
        if text not in self._texts:
            parts = [part for part in self._added.split(text) if part]
            words = chain.from_iterable([p] if self._added.fullmatch(p) else self._pre_tokenize(p) for p in parts)
            self._texts[text] = [self._word_index(word) for word in words]
        return self._texts[text]

    def _pre_tokenize(self, text: str) -> list[str]:
        normalizer = self._backend.normalizer
        normalized = text if normalizer is None else normalizer.normalize_str(text)
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(normalized)]

    def _word_index(self, word: str) -> int:
        if word not in self._words:
            self._words[word] = len(self._characters)
            ids = [self._vocab.get(character, self._unk) for character in word]
            # Consecutive unknown characters are fused into one unknown token, as in the library.
            self._characters.append(
                [i for i, previous in zip(ids, [-1, *ids], strict=False) if i != self._unk or i != previous]
            )
        return self._words[word]


def _without_column(table: Ids, column: Ids) -> Ids:
    """Remove one column of each row: [rows, columns] -> [rows, columns - 1]."""
    kept = np.arange(table.shape[1] - 1)
    return np.take_along_axis(table, kept + (kept >= column[:, None]), axis=1)
