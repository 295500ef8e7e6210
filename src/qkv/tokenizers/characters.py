"""Character ids of words for ELMo (Peters et al. 2018): UTF-8 bytes between word boundaries, padded.

    "cat"  ->  BEGIN_WORD c a t END_WORD WORD_PADDING WORD_PADDING ...     each id has 1 added: 0 is padding

There is no vocabulary to train, and there are no unknown words.
"""

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from qkv.types import Int, Tensor

PADDING = 0  # every character of a padding word, up to the longest sentence of a batch
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, WORD_PADDING = range(257, 262)
CHARACTERS = 262  # number of ids
SENTENCE = {"<S>": BEGIN_SENTENCE, "</S>": END_SENTENCE}  # as in the released vocabularies


class CharacterIds:
    """Encodes words as `max_characters` character ids each, including boundaries; longer words are truncated."""

    def __init__(self, max_characters: int = 50) -> None:
        self.max_characters = max_characters

    def word(self, word: str) -> list[int]:
        """Return the character ids of a word; <S> and </S> have a special id each."""
        characters = [1 + byte for byte in word.encode("utf-8", "ignore")[: self.max_characters - 2]]
        if word in SENTENCE:
            characters = [SENTENCE[word]]
        ids = [BEGIN_WORD, *characters, END_WORD]
        return ids + [WORD_PADDING] * (self.max_characters - len(ids))

    def __call__(self, sentences: Sequence[Sequence[str]]) -> Int[Tensor, "sentences words characters"]:
        """Return the character ids of a batch of sentences, padded to the longest."""
        words = max(map(len, sentences), default=0)
        padding = [PADDING] * self.max_characters
        rows = [[*map(self.word, sentence), *[padding] * (words - len(sentence))] for sentence in sentences]
        return torch.tensor(rows, dtype=torch.int64).view(len(sentences), words, self.max_characters)


class WordTable:
    """Table with the character ids of each distinct word in a row; row 0 is padding.

    Texts are stored as word ids, and the character ids are gathered from the table on the model's device.
    """

    def __init__(self, characters: CharacterIds) -> None:
        self.characters = characters
        self.ids: dict[str, int] = {}
        self._rows = array("h", [PADDING] * characters.max_characters)
        self._tables: dict[torch.device, Int[Tensor, "words characters"]] = {}

    def __len__(self) -> int:
        return 1 + len(self.ids)

    def add(self, words: Iterable[str]) -> list[int]:
        """Return the ids of words, adding new words to the table."""
        ids = []
        for word in words:
            index = self.ids.get(word)
            if index is None:
                index = self.ids[word] = len(self)
                self._rows.extend(self.characters.word(word))
                self._tables = {}
            ids.append(index)
        return ids

    def rows(self, ids: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape characters"]:
        """Return the character ids of words, on the device of `ids`. The table keeps its address until a word is
        added, so a CUDA graph may read it.
        """
        device = ids.device
        if device not in self._tables:
            table = torch.from_numpy(np.array(self._rows).reshape(len(self), self.characters.max_characters))
            self._tables[device] = table.to(device)
        return self._tables[device][ids].long()
