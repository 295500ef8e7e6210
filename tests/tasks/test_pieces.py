"""Texts in pieces: words as numbers in a table, what a model reads for them, and batches of both."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.characters import Characters
from qkv.data.sentences import split_sentences
from qkv.data.vocabulary import Vocabulary
from qkv.data.wordpiece import learn_wordpieces
from qkv.errors import InputError
from qkv.tasks.pieces import (
    IGNORE,
    Piece,
    SentenceSplitter,
    Splitter,
    WordSplitter,
    batched,
    batched_filled,
    in_parts,
    splitter_for,
)
from qkv.tasks.words import split_words


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.sampled_from("aB1 .,'’-@#:/\n\t\u2028\x1fé好🙂_)n"), max_size=20), max_size=4))
def test_the_words_of_a_text_are_those_of_the_text_as_a_whole(texts):
    splitter = WordSplitter(Characters(6))
    for text, numbers in zip(texts, splitter.split(texts), strict=True):
        names = {number: word for word, number in splitter.table.ids.items()}
        expected = [text[begin:end] for begin, end in split_words(text)] or [""]
        assert [names[number] for number in numbers] == expected


def test_a_model_reads_the_characters_of_words_and_its_own_numbers_of_tokens():
    words, tokens = WordSplitter(Characters(6)), Splitter(Vocabulary.train(["a b"], "char"))
    split = words.split(["the cat", "the"])
    batch = batched([Piece(ids, 0) for ids in split], words.pad)
    assert torch.equal(words.read(batch.tokens_read), Characters(6)([["the", "cat"], ["the"]]))
    assert tokens.read(batch.tokens_read) is batch.tokens_read
    assert words.split_words(["the", "don't"]) == [[split[0][0]], [3]]  # a word that is given is one word


def test_a_splitter_that_begins_anew_has_met_nothing():
    splitter = WordSplitter(Characters(6))
    splitter.split(["a b c"])
    again = splitter.anew()
    assert (len(splitter.table), len(again.table)) == (4, 1)
    assert again.tokenizer is splitter.tokenizer


def test_what_cuts_texts_for_a_model_is_as_the_model_reads():
    vocabulary = Vocabulary.train(["a b"], "char")
    assert splitter_for(vocabulary, SimpleNamespace(max_length=4)).tokenizer is vocabulary
    by_characters = splitter_for(vocabulary, SimpleNamespace(max_length=4, max_characters=9))
    assert isinstance(by_characters, WordSplitter)
    assert by_characters.tokenizer.longest == 9
    assert (by_characters.room(4), by_characters.between([5]), by_characters.first) == (4, [5], 0)


def test_what_is_said_of_one_token_is_not_what_is_said_of_a_text():
    of_tokens = batched([Piece([7], [2]), Piece([7, 8], [1, 0])], 9)
    assert of_tokens.targets.tolist() == [[2, IGNORE], [1, 0]]
    assert of_tokens.tokens_read.tolist() == [[7, 9], [7, 8]]
    assert of_tokens.tokens == 3
    of_texts = batched_filled([Piece([7], 2), Piece([7, 8], IGNORE)], 9, 16, 3)
    assert of_texts.tokens_read.shape == (5, 3)
    assert of_texts.targets.tolist() == [2, *[IGNORE] * 4]
    assert of_texts.lengths.tolist() == [1, 2, 1, 1, 1]
    assert of_texts.tokens == 1


WORDS = Vocabulary.train(["the cat sat . a dog did not . what now ?"], "word")


def test_the_name_of_the_padding_in_a_text_is_a_word_like_any_other():
    tokenizer = learn_wordpieces(["good bad film"] * 5, 40)
    splitter = SentenceSplitter(tokenizer, 4)
    numbers = splitter.split(["good [PAD] film"])[0]
    (words,) = splitter.read(torch.tensor([numbers]))[0].tolist()
    good, film = tokenizer.encode_ids(["good film"])[0]
    assert words == [good, tokenizer.special_tokens.unknown, film]


def words_of(splitter: SentenceSplitter, numbers: list[int]) -> list[str]:
    rows = splitter.read(torch.tensor([numbers]))[0]
    return [WORDS.decode([number for number in row.tolist() if number]) for row in rows]


def test_a_document_is_cut_into_sentences_and_a_long_one_into_parts():
    splitter = SentenceSplitter(WORDS, 4)
    first, second, empty = splitter.split(["The cat sat . A dog did not sit . What now ?", "what now ?", " "])
    assert (first, second, empty, len(splitter)) == ([1, 2, 3, 4], [5], [6], 7)
    assert words_of(splitter, first) == ["<unk> cat sat .", "<unk> dog did", "not<unk> .", "<unk> now ?"]
    assert words_of(splitter, [*second, *empty]) == ["what now ?", "<unk>"]
    assert splitter.read(torch.tensor([second, [0]])).tolist() == [[WORDS.encode("what now ?").ids], [[0, 0, 0]]]
    assert splitter.read(torch.tensor([[0]])).tolist() == [[[0]]]  # nothing at all is one word that is not there
    assert len(splitter.anew()) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.sampled_from("acdt .?!\n"), max_size=30), max_size=3), st.integers(1, 5))
def test_no_word_of_a_document_is_lost_and_none_is_added(texts, longest):
    splitter = SentenceSplitter(WORDS, longest)
    for text, numbers in zip(texts, splitter.split(texts), strict=True):
        rows = splitter.read(torch.tensor([numbers]))[0]
        assert 1 <= rows.shape[1] <= longest
        sentences = split_sentences(text) or [""]
        expected = [number for sentence in sentences for number in WORDS.encode(sentence).ids or [1]]
        assert [number for row in rows.tolist() for number in row if number] == expected


def test_parts_of_a_long_sentence_are_of_much_the_same_length_and_as_few_as_can_be():
    assert [len(part) for part in in_parts(range(41), 40)] == [20, 21]
    assert [len(part) for part in in_parts(range(40), 40)] == [40]
    for words in range(1, 30):
        sizes = [len(part) for part in in_parts(range(words), 7)]
        assert (sum(sizes), len(sizes), max(sizes) - min(sizes) < 2) == (words, -(-words // 7), True)


def test_what_reads_sentences_is_told_by_its_config_and_reads_fewer_of_them_at_once():
    splitter = splitter_for(WORDS, SimpleNamespace(max_length=9, max_words=4))
    assert isinstance(splitter, SentenceSplitter)
    assert (splitter.room(9), splitter.between([5]), splitter.first, splitter.unit) == (9, [5], 0, "sentences")
    assert (splitter.at_once(17), splitter.at_once(1)) == (4, 1)
    with pytest.raises(InputError, match="says nothing of single words"):
        splitter.split_words(["cat"])
