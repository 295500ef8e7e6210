"""The words that are predicted: which of them, in which order, and how they come back from a file."""

import pytest

from qkv.errors import InputError
from qkv.tokenizers.frequent_words import frequent_words
from qkv.tokenizers.vocabulary import SPECIAL, UNKNOWN, Vocabulary

COUNTS = {"the": 5, "cat": 2, "The": 3, "n't": 2, "<s>": 9, "rare": 1}


def words(vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.piece(number) for number in range(len(vocabulary))]


def test_the_most_frequent_words_come_first_and_those_alike_by_the_alphabet():
    assert words(frequent_words(COUNTS, "word")) == [*SPECIAL, "the", "The", "cat", "n't", "rare"]
    assert words(frequent_words(COUNTS, "word:7")) == [*SPECIAL, "the", "The", "cat"]


def test_in_lower_case_words_are_counted_together():
    assert words(frequent_words(COUNTS | {"x": 7}, "word:6", lowercase=True)) == [*SPECIAL, "the", "x"]


def test_words_are_tokens_and_others_are_unknown_also_after_saving():
    for vocabulary in (found := frequent_words(COUNTS, "word:7"), Vocabulary.from_json(found.to_json(), "here")):
        assert vocabulary.encode_ids(["the", "n't", "THE"]) == [[4], [UNKNOWN], [UNKNOWN]]


def test_only_word_vocabularies_are_supported():
    with pytest.raises(InputError, match=r"data\.vocabulary = 'bpe:9': .* use word:N"):
        frequent_words(COUNTS, "bpe:9")
