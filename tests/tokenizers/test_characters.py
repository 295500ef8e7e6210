"""Tests of character ids against hand-written ELMo ids."""

import torch

from qkv.tokenizers.characters import CharacterIds, WordTable


def test_a_word_is_its_bytes_plus_1_between_word_boundaries():
    expected = [259, ord("c") + 1, ord("a") + 1, ord("t") + 1, 260, *[261] * 45]
    assert CharacterIds().word("cat") == expected
    assert len(expected) == 50


def test_letters_beyond_ascii_are_several_bytes():
    assert CharacterIds(8).word("ñ€") == [259, 0xC3 + 1, 0xB1 + 1, 0xE2 + 1, 0x82 + 1, 0xAC + 1, 260, 261]


def test_long_words_are_truncated():
    assert CharacterIds(6).word("abcdefgh") == [259, 98, 99, 100, 101, 260]
    assert CharacterIds(6).word("abcd") == [259, 98, 99, 100, 101, 260]


def test_sentence_boundaries_are_words_of_one_special_character():
    assert CharacterIds(5).word("<S>") == [259, 257, 260, 261, 261]
    assert CharacterIds(5).word("</S>") == [259, 258, 260, 261, 261]


def test_lone_surrogates_are_dropped():
    assert CharacterIds(5).word("a\ud800") == CharacterIds(5).word("a")


def test_the_empty_word_is_still_a_word():
    assert CharacterIds(4).word("") == [259, 260, 261, 261]


def test_shorter_sentences_are_padded():
    rows = CharacterIds(5)([["a", "b"], [], ["c"]])
    assert rows.shape == (3, 2, 5)
    assert rows.dtype == torch.int64
    assert rows[0].tolist() == [[259, 98, 260, 261, 261], [259, 99, 260, 261, 261]]
    assert rows[1].abs().sum() == 0
    assert rows[2].tolist() == [[259, 100, 260, 261, 261], [0] * 5]
    assert CharacterIds(5)([]).shape == (0, 0, 5)


def test_a_word_table_has_every_word_once_and_row_0_is_padding():
    table, characters = WordTable(CharacterIds(5)), CharacterIds(5)
    assert table.add(["a", "bc", "a"]) == [1, 2, 1]
    numbers = torch.tensor([[1, 2], [2, 0]])
    assert torch.equal(table.rows(numbers), characters([["a", "bc"], ["bc"]]))
    assert table.add(["ñ", "bc"]) == [3, 2]
    assert table.rows(torch.tensor([3])).tolist() == [characters.word("ñ")]
    assert len(table) == 4


def test_a_word_table_keeps_its_address_until_a_word_is_added():
    table = WordTable(CharacterIds(5))
    table.add(["a"])
    table.rows(torch.tensor([1]))
    (before,) = table._tables.values()
    table.add(["a"])
    table.rows(torch.tensor([0]))
    (after,) = table._tables.values()
    assert after is before
