"""The characters of words as ELMo reads them (Peters et al. 2018): the bytes of UTF-8, between two marks, filled up.

    "cat"  ->  BEGIN_WORD c a t END_WORD FILLING FILLING ...     each byte has 1 added: 0 is no word at all

A word never needs a vocabulary: one that was never seen has bytes, too.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from qkv.types import Int, Tensor

if TYPE_CHECKING:
    from qkv.data.vocabulary import Vocabulary

NOTHING = 0  # in place of each character of a word that is not there: a shorter sentence is filled up with such words
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, FILLING = range(257, 262)
CHARACTERS = 262  # how many numbers there are
SENTENCE = {"<S>": BEGIN_SENTENCE, "</S>": END_SENTENCE}  # as the released vocabularies write them


class Characters:
    """Words to characters, `longest` for each word, the marks among them; of a longer one the beginning is read.

    A language model reads any word, but predicts only some: those of the vocabulary `predicted`.
    """

    def __init__(self, longest: int = 50, predicted: "Vocabulary | None" = None) -> None:
        self.longest = longest
        self.predicted = predicted

    def __len__(self) -> int:
        return CHARACTERS

    def word(self, word: str) -> list[int]:
        """The characters of one word; the two that stand for the ends of a sentence have one of their own."""
        if word in SENTENCE:
            return marked([SENTENCE[word]], self.longest)
        return marked([1 + byte for byte in word.encode("utf-8", "ignore")[: self.longest - 2]], self.longest)

    def __call__(self, sentences: Sequence[Sequence[str]]) -> Int[Tensor, "sentences words characters"]:
        """The characters of the words of sentences; what a sentence lacks to the longest is NOTHING."""
        words = max(map(len, sentences), default=0)
        nothing = [NOTHING] * self.longest
        rows = [[*map(self.word, sentence), *[nothing] * (words - len(sentence))] for sentence in sentences]
        return torch.tensor(rows, dtype=torch.int64).view(len(sentences), words, self.longest)


class WordTable:
    """Words under numbers, each word once, and its characters as a row of a table; row 0 is no word at all.

    A text is then a row of numbers, and what a model reads of it is gathered from the table, on the model's device.
    """

    def __init__(self, characters: Characters) -> None:
        self.characters = characters
        self.numbers: dict[str, int] = {}
        self._rows = array("h", [NOTHING] * characters.longest)
        self._tables: dict[torch.device, Int[Tensor, "words characters"]] = {}

    def __len__(self) -> int:
        return 1 + len(self.numbers)

    def add(self, words: Iterable[str]) -> list[int]:
        """The numbers of words; what was not known is from now on."""
        found = []
        for word in words:
            number = self.numbers.get(word)
            if number is None:
                number = self.numbers[word] = len(self)
                self._rows.extend(self.characters.word(word))
                self._tables = {}
            found.append(number)
        return found

    def rows(self, numbers: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape characters"]:
        """The characters of words, where their numbers are. As long as no word is added the table stays in its place,
        and a CUDA graph may look at it.
        """
        device = numbers.device
        if device not in self._tables:
            table = torch.from_numpy(np.array(self._rows).reshape(len(self), self.characters.longest))
            self._tables[device] = table.to(device)
        return self._tables[device][numbers].long()


def marked(characters: Sequence[int], longest: int) -> list[int]:
    """Characters between the marks of a word, filled up; what begins or ends a sentence is such a word, too."""
    word = [BEGIN_WORD, *characters, END_WORD]
    return word + [FILLING] * (longest - len(word))
