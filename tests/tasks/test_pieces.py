"""Texts in pieces: words as numbers in a table, what a model reads for them, and batches of both."""

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.characters import Characters
from qkv.data.vocabulary import Vocabulary
from qkv.tasks.pieces import IGNORE, Piece, Splitter, WordSplitter, batched, batched_filled, splitter_for
from qkv.tasks.words import split_words


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.sampled_from("aB1 .,'’-@#:/\n\t\u2028\x1fé好🙂_)n"), max_size=20), max_size=4))
def test_the_words_of_a_text_are_those_of_the_text_as_a_whole(texts):
    splitter = WordSplitter(Characters(6))
    for text, numbers in zip(texts, splitter.split(texts), strict=True):
        names = {number: word for word, number in splitter.table.numbers.items()}
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
