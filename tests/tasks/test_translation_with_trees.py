"""Translation by Transformers that read dependency trees: tokens stand where their words do, in batches and answers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.data.pair import Pair
from qkv.data.registry import LoadedData
from qkv.data.tagged import Tagged
from qkv.data.vocabulary import Vocabulary
from qkv.data.wordpiece import learn_wordpieces
from qkv.errors import InputError
from qkv.interop import save_model
from qkv.models.transformer import Config, Transformer
from qkv.tasks.parsed import ParsedBatch, parsed_ids, parsed_tokens
from qkv.tasks.translation import TranslationTask, encode
from qkv.tasks.translator import Search, Translator
from qkv.tasks.trees import Parsed
from qkv.training.recipe import TrainConfig

HEADS = [(0, 1, 1), (0, 1, 2), (0, 3, 1), (2, 0, 2), (2, 0, 1), (3, 0, 2), (3, 3, 0), (3, 1, 0)]


def pair(heads: tuple[int, ...], words: tuple[str, ...] = ("a", "b", "c")) -> Pair:
    """The target is the head of each word, "-" of the root: it depends on the tree, and on nothing else."""
    target = " ".join(words[head - 1] if head else "-" for head in heads)
    return Pair(" ".join(words), target, parsed=Tagged(words, ("",) * len(words), heads))


PAIRS = [pair(heads) for heads in HEADS]
MIXED = [*PAIRS, pair((2, 0), ("a", "b")), pair((0,), ("c",)), pair((2, 3, 4, 5, 0), tuple("abcab"))]
VOCABULARY = Vocabulary.train(["a b c -"], "word")


def made(pairs: list[Pair] = PAIRS, vocabulary: Vocabulary = VOCABULARY, **changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"dim": 16, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 32, "max_length": 32}
    config = Config(
        len(vocabulary), len(vocabulary), **{**sizes, "dropout": 0.0, "tree": "both", **changes}, tie_embeddings=False
    )
    data = LoadedData({"train": pairs, "valid": pairs})
    task = TranslationTask.prepare(data, vocabulary, config, TrainConfig(batch_tokens=64), 0)
    return task, Transformer(config).eval()


def spread(model: Transformer) -> Transformer:
    """So that answers differ from text to text, and from tree to tree."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


TEXTS = ["An übergroße cafe\u0301, l'été 1 000 <s> U.S.", "the cat's hat - 10 000 of them", "日本 ▁ e\u0301."]
SENTENCES = [  # words have blanks, marks and accents in them, and some were never seen
    Parsed(("An", "u\u0308ber", "'s", "10 000", "<s>", "ca\u0301t", "▁"), (0, 1, 1, 1, 1, 1, 1)),
    Parsed(("\u0301x", "日本", ".", "hat", "--", "QQQ"), (0, 1, 2, 3, 4, 5)),
    Parsed(("U.S.",), (0,)),
]


@pytest.mark.parametrize("kind", ["char", "word", "word:12", "bpe:50", "bpe:120"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_word_by_word_a_sentence_is_cut_into_the_tokens_of_its_text(kind, lowercase):
    vocabulary = Vocabulary.train(TEXTS, kind, lowercase=lowercase)
    texts = [" ".join(one.words) for one in SENTENCES]
    assert [one.ids for one in parsed_ids(vocabulary, SENTENCES)] == vocabulary.encode_ids(texts)
    for one, text in zip(SENTENCES, texts, strict=True):
        found, whole = parsed_tokens(vocabulary, one), vocabulary.encode(text)
        assert (found.ids, found.pieces) == (whole.ids, whole.pieces)
        words = [
            "".join(piece for piece, of in zip(found.pieces, found.tree.words, strict=True) if of == number)
            for number in range(1, len(one.words) + 1)
        ]
        assert [word.removeprefix(" ") for word in words] == list(one.words)


def test_the_blank_before_a_word_is_of_that_word():
    (found,) = parsed_ids(Vocabulary.train(["ab c"], "char"), [Parsed(("ab", "c"), (2, 0))])
    assert found.tree.words == [1, 1, 2, 2]
    assert found.tree.heads == (2, 0)


def test_subwords_are_drawn_as_those_of_the_texts_are():
    vocabulary = Vocabulary.train(TEXTS, "bpe:120")
    texts = [" ".join(one.words) for one in SENTENCES]
    drawn = [one.ids for one in parsed_ids(vocabulary, SENTENCES, dropout=0.5, seed=(1, 2))]
    assert drawn == vocabulary.encode_ids(texts, dropout=0.5, seed=(1, 2))
    assert drawn != vocabulary.encode_ids(texts)
    pairs = [pair((2, 0), ("the cat", "of")), pair((0,), ("hat",))]
    for one in encode(vocabulary, pairs, dropout=0.9, seed=(0, 1), trees=True):
        assert len(one.tree.words) == len(one.source)


def test_batches_have_the_trees_of_their_rows_and_are_filled_up_with_rows_of_none():
    task, model = made(MIXED)
    spread(model)
    for rows in ([0, 8, 10], [9]):
        plain, filled = task.batch(rows), task.batch(rows, filled=True)
        width = filled.source.shape[1]
        assert filled.distance.shape == (64 // width, width, width)
        assert filled.depth[len(rows) :].abs().max() == 0
        torch.testing.assert_close(task.loss(model, filled), task.loss(model, plain))
        torch.testing.assert_close(task.loss(model, plain.to(torch.device("cpu"))), task.loss(model, plain))
    assert task.batch([8, 10]).depth.tolist() == [[2, 1, 0, 0, 0], [5, 4, 3, 2, 1]]


def test_without_trees_a_batch_has_none_and_a_parsed_sentence_is_its_text():
    task, model = made(tree="none")
    assert not isinstance(task.batch([0]), ParsedBatch)
    translator = Translator(spread(model), VOCABULARY)
    assert translator(PAIRS[0].parsed).text == translator("a b c").text


def steps(task: TranslationTask, model: Transformer, number: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(number):
        loss = task.loss(model, task.batch(range(len(PAIRS)), filled=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("tree", ["distance", "both"])
def test_what_the_tree_alone_tells_is_learned_by_who_reads_it(tree):
    task, model = made(tree=tree)
    steps(task, model, 100)
    assert task.validate(model)["exact"] == 1.0


def test_what_the_tree_alone_tells_is_not_learned_by_who_does_not_read_it():
    task, blind = made(tree="none")
    steps(task, blind, 100)
    assert task.validate(blind)["exact"] <= 1 / len(PAIRS)


@pytest.mark.parametrize("beam", [1, 3])
def test_answers_are_by_the_tree_of_each_sentence_whatever_else_is_in_the_batch(beam):
    translator = Translator(spread(made()[1]), VOCABULARY)
    given = [one.source_input for one in MIXED]
    together = translator.translate(given, Search(beam, max_length=6))
    assert [answers[0].source for answers in together] == [one.source for one in MIXED]
    assert len({round(answers[0].score, 4) for answers in together[: len(PAIRS)]}) > 1  # of one and the same text
    for one, (best,) in zip(given, together, strict=True):
        alone = translator(one, beam=beam, max_length=6)
        assert alone.text == best.text
        assert alone.score == pytest.approx(best.score, abs=1e-5)
        assert [found.layer for found in alone.maps] == ["decoder.0.cross", "decoder.0.self", "encoder.0"]
        assert alone.maps[2].columns == VOCABULARY.encode(alone.source).pieces


def test_a_translator_that_was_saved_answers_alike(tmp_path: Path):
    model = spread(made()[1])
    save_model(model, VOCABULARY, tmp_path)
    given = [one.source_input for one in MIXED]
    expected = Translator(model, VOCABULARY).translate(given, Search(max_length=6))
    assert Translator(tmp_path, device="cpu").translate(given, Search(max_length=6)) == expected


def test_a_source_without_a_tree_is_refused_in_words():
    words = "has no head for each of its words, and the model reads dependency trees"
    with pytest.raises(InputError, match=f"train: pair 9 {words}"):
        made([*PAIRS, Pair("a b", "c")])
    translator = Translator(made()[1], VOCABULARY)
    with pytest.raises(InputError, match=f"input 2 {words}"):
        translator.check([PAIRS[0].parsed, "a b c"])
    with pytest.raises(InputError, match=f"input 1 {words}"):
        translator(Tagged(("a", "b"), ("", ""), (0,)))


def test_what_is_no_tree_is_refused_in_words():
    with pytest.raises(InputError, match="word 3 of sentence 1 is a second root"):
        Translator(made()[1], VOCABULARY)(Tagged(("a", "b", "c"), ("",) * 3, (0, 1, 0)))


def test_a_released_tokenizer_is_refused_in_words():
    with pytest.raises(InputError, match="needs a vocabulary that was learned here"):
        parsed_ids(learn_wordpieces(["a b"], 60), [Parsed(("a", "b"), (2, 0))])
