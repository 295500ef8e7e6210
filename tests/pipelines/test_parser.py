"""The parser: well-formed trees whatever the weights, the engine and the simple search, attention, and bad input."""

import random

import pytest
import torch

import qkv
from qkv.datasets.examples.tagged import Tagged
from qkv.datasets.examples.trees import MAX_WORDS, Tree
from qkv.errors import InputError
from qkv.hub.model_folder import save_model
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.tokenizers import WordTokenizer

from .parsers import gru_parser, transformer_parser

BUILD = [transformer_parser, gru_parser]


def sentences(seed, count=5):
    generator = random.Random(seed)
    letters = "abcdT .,()é水😀-"
    lengths = [generator.randint(1, 7) for _ in range(count)]
    return [
        tuple(
            "".join(generator.choice(letters).replace(" ", "x") for _ in range(generator.randint(1, 4)))
            for _ in range(n)
        )
        for n in lengths
    ]


@pytest.mark.parametrize("pointer", [False, True])
@pytest.mark.parametrize("build", BUILD)
def test_random_weights_give_trees_over_all_words_in_order(build, pointer):
    parser, given = qkv.Parser(build(pointer)), sentences(0)
    for num_beams in (1, 3):
        for words, parse in zip(given, parser(given, num_beams=num_beams), strict=True):
            escaped = tuple(word.replace("(", "-LRB-").replace(")", "-RRB-") for word in words)
            assert parse.tree.words == escaped
            assert Tree.parse(parse.text, "output") == parse.tree
            assert Tree.from_symbols(parse.symbols, escaped, "output") == parse.tree


@pytest.mark.parametrize("build", BUILD)
def test_the_engine_and_the_simple_search_find_the_same_trees(build):
    model, given = build(pointer=False), sentences(3)
    fast, simple = qkv.Parser(model), qkv.Parser(model, use_engine=False)
    assert fast.engine is not None
    for num_beams in (1, 4):
        expected = simple(given, num_beams=num_beams)
        assert [parse.text for parse in fast(given, num_beams=num_beams)] == [parse.text for parse in expected]


@pytest.mark.parametrize("build", BUILD)
def test_a_tree_does_not_depend_on_the_batch(build):
    parser, given = qkv.Parser(build()), sentences(4)
    assert [parser(words).text for words in given] == [parse.text for parse in parser(given)]


def test_texts_words_and_tagged_sentences_are_parsed_alike():
    parser = qkv.Parser(transformer_parser())
    words = ("The", "cat", "sleeps", ".")
    expected = parser(words).text
    assert parser("The cat sleeps.").text == expected
    assert parser(Tagged(words, ("",) * 4)).text == expected
    assert parser("(cats)").tree.words == ("-LRB-", "cats", "-RRB-")


def test_several_trees_are_returned_best_first():
    trees = qkv.Parser(transformer_parser())("The cat sleeps", num_beams=4, num_return_sequences=3)
    assert len({parse.text for parse in trees}) == 3
    assert [parse.score for parse in trees] == sorted((parse.score for parse in trees), reverse=True)


@pytest.mark.parametrize("build", BUILD)
def test_attention_of_each_symbol_over_the_words(build):
    parse = qkv.Parser(build())("The cat sleeps on mats")
    words = parse.words()
    assert words.rows == parse.symbols
    assert words.columns == parse.tree.words
    assert words.average.sum(axis=1) == pytest.approx(1, abs=1e-4)


def test_a_parser_can_be_saved_and_loaded(tmp_path):
    model = transformer_parser()
    save_model(model, model.tokenizer, tmp_path)
    assert qkv.Parser(tmp_path)("The cat sleeps").text == qkv.Parser(model)("The cat sleeps").text


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ((), "empty"),
        (("a", " "), "empty"),
        (("a",) * (MAX_WORDS + 1), "words"),
        (("a" * 5000, "b"), "characters"),
        (("a",) * 63, "at most 64"),
        ("cat " * 70, "at most 64"),
    ],
)
def test_sentences_that_cannot_be_parsed_are_rejected(sentence, word):
    with pytest.raises(InputError, match=word) as error:
        qkv.Parser(transformer_parser())(["The cat", sentence])
    assert "input 2" in str(error.value)


def test_a_translator_is_no_parser():
    tokenizer = WordTokenizer.train(["a b"])
    sizes = {"source_vocab_size": len(tokenizer), "target_vocab_size": len(tokenizer), "dim": 8, "heads": 2}
    with pytest.raises(InputError, match="parse"):
        qkv.Parser(Transformer(TransformerConfig(**sizes)), tokenizer)


def test_a_pointer_requires_the_positions_of_the_words():
    model = transformer_parser()
    with pytest.raises(InputError, match="words"):
        model(torch.tensor([[5, 6]]), torch.tensor([[2]]))
