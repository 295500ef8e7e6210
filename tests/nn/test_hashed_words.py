"""Vectors of words by a hash of their characters: whose row it is, and that few words share one."""

import torch

from qkv.data.characters import Characters
from qkv.nn.hashed_words import PRIME, ROWS, HashedWords


def row_by_hand(numbers: list[int]) -> int:
    """In Python's numbers, which never run over."""
    total = sum(number * PRIME ** (place + 1) for place, number in enumerate(numbers)) % 2**64
    found = total - 2**64 if total >= 2**63 else total
    return (found ^ (found >> 32)) % ROWS


def test_each_word_has_the_row_that_its_characters_name():
    torch.manual_seed(0)
    words, characters = HashedWords(12, 4), Characters(12)([["a", "schön", "incomprehensibilities"], ["b"]])
    found = words(characters)
    assert found.shape == (2, 3, 4)
    for line, vectors in zip(characters.tolist(), found, strict=True):
        for word, vector in zip(line, vectors, strict=True):
            assert torch.equal(vector, words.table.weight[row_by_hand(word)])


def test_words_that_differ_in_one_character_share_no_more_rows_than_chance_has_it():
    lines = [f"{first}{middle:03}{last}" for first in "abcde" for middle in range(1000) for last in "xyz"]
    rows = {row_by_hand(word) for word in Characters(8)([lines])[0].tolist()}
    expected = ROWS * (1 - (1 - 1 / ROWS) ** len(lines))
    assert abs(len(rows) - expected) < 4 * len(lines) ** 0.5


def test_only_the_rows_of_words_that_were_read_learn():
    words, characters = HashedWords(6, 3), Characters(6)([["to", "be"]])
    words(characters).sum().backward()
    learned = words.table.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert learned == sorted(row_by_hand(word) for word in characters[0].tolist())
