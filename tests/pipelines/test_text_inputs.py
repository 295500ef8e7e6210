"""Example encoders: words, tokens and sentences as ids, the model input for them, and batches of both."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.datasets.batching import BatchSize
from qkv.errors import InputError
from qkv.pipelines.inputs.text_inputs import (
    IGNORE,
    Example,
    ExampleEncoder,
    SentenceExampleEncoder,
    WordExampleEncoder,
    build_example_encoder,
    collate,
    collate_padded,
    split_evenly,
)
from qkv.tokenizers import CharTokenizer, WordPieceTokenizer, WordTokenizer
from qkv.tokenizers.characters import CharacterIds
from qkv.tokenizers.sentences import split_sentences
from qkv.tokenizers.words import split_words


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.sampled_from("aB1 .,'’-@#:/\n\t\u2028\x1fé好🙂_)n"), max_size=20), max_size=4))
def test_chunks_encode_to_the_same_words_as_the_whole_text(texts):
    encoder = WordExampleEncoder(6)
    for text, ids in zip(texts, encoder.encode(texts), strict=True):
        names = {number: word for word, number in encoder.table.ids.items()}
        expected = [text[begin:end] for begin, end in split_words(text)] or [""]
        assert [names[number] for number in ids] == expected


def test_lookup_returns_characters_of_words_and_token_ids_unchanged():
    words, tokens = WordExampleEncoder(6), ExampleEncoder(CharTokenizer.train(["a b"]))
    split = words.encode(["the cat", "the"])
    batch = collate([Example(ids, 0) for ids in split], words.pad)
    assert torch.equal(words.lookup(batch.token_ids), CharacterIds(6)([["the", "cat"], ["the"]]))
    assert tokens.lookup(batch.token_ids) is batch.token_ids
    assert words.encode_words(["the", "don't"]) == [[split[0][0]], [3]]  # given words are not split


def test_a_fresh_copy_has_an_empty_table():
    encoder = WordExampleEncoder(6)
    encoder.encode(["a b c"])
    again = encoder.fresh_copy()
    assert (len(encoder.table), len(again.table)) == (4, 1)
    assert again.table.characters.max_characters == 6


def test_the_config_selects_the_example_encoder():
    tokenizer = CharTokenizer.train(["a b"])
    assert build_example_encoder(tokenizer, SimpleNamespace(max_length=4)).tokenizer is tokenizer
    with pytest.raises(InputError, match="no tokenizer"):
        build_example_encoder(None, SimpleNamespace(max_length=4))
    by_characters = build_example_encoder(None, SimpleNamespace(max_length=4, max_characters=9))
    assert isinstance(by_characters, WordExampleEncoder)
    assert by_characters.table.characters.max_characters == 9
    assert by_characters.max_tokens(4) == 4
    assert by_characters.add_special_tokens([5]) == [5]
    assert by_characters.first_position == 0


def test_targets_are_padded_per_token_or_per_text():
    token_batch = collate([Example([7], [2]), Example([7, 8], [1, 0])], 9)
    assert token_batch.targets.tolist() == [[2, IGNORE], [1, 0]]
    assert token_batch.token_ids.tolist() == [[7, 9], [7, 8]]
    assert token_batch.tokens == 3
    text_batch = collate_padded([Example([7], 2), Example([7, 8], IGNORE)], 9, BatchSize(16), 3)
    assert text_batch.token_ids.shape == (5, 3)
    assert text_batch.targets.tolist() == [2, *[IGNORE] * 4]
    assert text_batch.lengths.tolist() == [1, 2, 1, 1, 1]
    assert text_batch.tokens == 1


WORD_LIST = WordTokenizer.train(["the cat sat . a dog did not . what now ?"])


def test_a_pad_token_in_a_text_becomes_unknown():
    tokenizer = WordPieceTokenizer.train(["good bad film"] * 5, vocab_size=40)
    encoder = SentenceExampleEncoder(tokenizer, 4)
    ids = encoder.encode(["good [PAD] film"])[0]
    (words,) = encoder.lookup(torch.tensor([ids]))[0].tolist()
    good, film = tokenizer.encode(["good film"])[0]
    assert words == [good, tokenizer.special_tokens.unk, film]


def words_of(encoder: SentenceExampleEncoder, ids: list[int]) -> list[str]:
    rows = encoder.lookup(torch.tensor([ids]))[0]
    return [WORD_LIST.decode([number for number in row.tolist() if number], skip_special_tokens=False) for row in rows]


def test_documents_are_split_into_sentences_and_long_ones_into_parts():
    encoder = SentenceExampleEncoder(WORD_LIST, 4)
    first, second, empty = encoder.encode(["The cat sat . A dog did not sit . What now ?", "what now ?", " "])
    assert (first, second, empty, len(encoder)) == ([1, 2, 3, 4], [5], [6], 7)
    assert words_of(encoder, first) == ["<unk> cat sat .", "<unk> dog did", "not<unk> .", "<unk> now ?"]
    assert words_of(encoder, [*second, *empty]) == ["what now ?", "<unk>"]
    assert encoder.lookup(torch.tensor([second, [0]])).tolist() == [[WORD_LIST.encode("what now ?")], [[0, 0, 0]]]
    assert encoder.lookup(torch.tensor([[0]])).tolist() == [[[0]]]  # padding only: one empty word
    assert len(encoder.fresh_copy()) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.sampled_from("acdt .?!\n"), max_size=30), max_size=3), st.integers(1, 5))
def test_no_word_of_a_document_is_lost_or_added(texts, max_words):
    encoder = SentenceExampleEncoder(WORD_LIST, max_words)
    for text, ids in zip(texts, encoder.encode(texts), strict=True):
        rows = encoder.lookup(torch.tensor([ids]))[0]
        assert 1 <= rows.shape[1] <= max_words
        sentences = split_sentences(text) or [""]
        expected = [number for sentence in sentences for number in WORD_LIST.encode(sentence) or [1]]
        assert [number for row in rows.tolist() for number in row if number] == expected


def test_split_evenly_gives_the_fewest_parts_of_similar_length():
    assert [len(part) for part in split_evenly(range(41), 40)] == [20, 21]
    assert [len(part) for part in split_evenly(range(40), 40)] == [40]
    for words in range(1, 30):
        sizes = [len(part) for part in split_evenly(range(words), 7)]
        assert (sum(sizes), len(sizes), max(sizes) - min(sizes) < 2) == (words, -(-words // 7), True)


def test_max_words_selects_the_sentence_encoder_with_smaller_batches():
    encoder = build_example_encoder(WORD_LIST, SimpleNamespace(max_length=9, max_words=4))
    assert isinstance(encoder, SentenceExampleEncoder)
    assert encoder.max_tokens(9) == 9
    assert encoder.add_special_tokens([5]) == [5]
    assert (encoder.first_position, encoder.unit) == (0, "sentences")
    sizes = [BatchSize(17), BatchSize(1), BatchSize(3, by="examples")]
    assert [encoder.max_batch(size).size for size in sizes] == [4, 1, 3]
    with pytest.raises(InputError, match="single words"):
        encoder.encode_words(["cat"])
