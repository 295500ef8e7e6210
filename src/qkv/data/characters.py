"""The characters of words as ELMo reads them (Peters et al. 2018): the bytes of UTF-8, between two marks, filled up.

    "cat"  ->  BEGIN_WORD c a t END_WORD FILLING FILLING ...     each byte has 1 added: 0 is no word at all

A word never needs a vocabulary: one that was never seen has bytes, too.
"""

from collections.abc import Sequence

import torch

from qkv.types import Int, Tensor

NOTHING = 0  # in place of each character of a word that is not there: a shorter sentence is filled up with such words
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, FILLING = range(257, 262)
CHARACTERS = 262  # how many numbers there are
SENTENCE = {"<S>": BEGIN_SENTENCE, "</S>": END_SENTENCE}  # as the released vocabularies write them


class Characters:
    """Words to characters, `longest` for each word, the marks among them; of a longer one the beginning is read."""

    def __init__(self, longest: int = 50) -> None:
        self.longest = longest

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


def marked(characters: Sequence[int], longest: int) -> list[int]:
    """Characters between the marks of a word, filled up; what begins or ends a sentence is such a word, too."""
    word = [BEGIN_WORD, *characters, END_WORD]
    return word + [FILLING] * (longest - len(word))
