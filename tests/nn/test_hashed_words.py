"""Hash embeddings of words."""

import torch

from qkv.nn.hashed_words import PRIME, ROWS, HashedWords
from qkv.tokenizers.characters import CharacterIds


def row_by_hand(numbers: list[int]) -> int:
    """Compute the row with Python's unbounded integers."""
    total = sum(number * PRIME ** (position + 1) for position, number in enumerate(numbers)) % 2**64
    actual = total - 2**64 if total >= 2**63 else total
    return (actual ^ (actual >> 32)) % ROWS


def test_the_hash_of_a_word_selects_its_row():
    torch.manual_seed(0)
    words, characters = HashedWords(12, 4), CharacterIds(12)([["a", "schön", "incomprehensibilities"], ["b"]])
    actual = words(characters)
    assert actual.shape == (2, 3, 4)
    for line, vectors in zip(characters.tolist(), actual, strict=True):
        for word, vector in zip(line, vectors, strict=True):
            assert torch.equal(vector, words.table.weight[row_by_hand(word)])


def test_similar_words_collide_no_more_than_random_ones():
    lines = [f"{first}{middle:03}{last}" for first in "abcde" for middle in range(1000) for last in "xyz"]
    rows = {row_by_hand(word) for word in CharacterIds(8)([lines])[0].tolist()}
    expected = ROWS * (1 - (1 - 1 / ROWS) ** len(lines))
    assert abs(len(rows) - expected) < 4 * len(lines) ** 0.5


def test_only_rows_of_input_words_get_gradients():
    words, characters = HashedWords(6, 3), CharacterIds(6)([["to", "be"]])
    words(characters).sum().backward()
    learned = words.table.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert learned == sorted(row_by_hand(word) for word in characters[0].tolist())
