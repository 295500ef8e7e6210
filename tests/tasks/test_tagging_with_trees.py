"""Tagging by models that read dependency trees: the tokens of a word stand where it stands, in parts and in batches."""

from typing import Any

import pytest
import torch

from qkv.data.registry import Loaded
from qkv.data.tagged import Tagged
from qkv.data.vocabulary import Vocabulary
from qkv.errors import InputError
from qkv.models.bert import Bert, Config
from qkv.tasks.pieces import Splitter
from qkv.tasks.tagger import Tagger
from qkv.tasks.tagging import TaggingTask, cut, tags_of
from qkv.tasks.trees import parsed
from qkv.training.recipe import TrainConfig, read_recipe

# What a word is depends on the tree alone: it is the child of the root, the root, or what hangs from a child.
SENTENCES = [
    Tagged(("ab", "ab", "ab"), ("child", "root", "child"), (2, 0, 2)),
    Tagged(("ab", "ab", "ab"), ("root", "child", "leaf"), (0, 1, 2)),
    Tagged(("ab", "ab", "ab"), ("leaf", "child", "root"), (2, 3, 0)),
    Tagged(("ab", "ab", "ab"), ("child", "leaf", "root"), (3, 1, 0)),
    Tagged(("ab", "ab"), ("root", "child"), (0, 1)),
    Tagged(("ab", "ab"), ("child", "root"), (2, 0)),
    Tagged(("ab",), ("root",), (0,)),
    Tagged(("ab", "ab", "ab", "ab"), ("leaf", "child", "root", "child"), (2, 3, 0, 3)),
]
VOCABULARY = Vocabulary.train(["ab"], "char")
DATA = Loaded({}, tagged={"train": SENTENCES, "valid": SENTENCES})


def made(data: Loaded = DATA, longest: int = 32, **changes: Any) -> tuple[TaggingTask, Bert]:
    sizes = TaggingTask.sizes(data, VOCABULARY)
    torch.manual_seed(0)
    config = Config(**{**sizes, "dim": 16, "heads": 2, "layers": 2, "max_length": longest, "tree": "both", **changes})
    task = TaggingTask.prepare(data, VOCABULARY, config, TrainConfig(batch_tokens=120), 0)
    return task, Bert(config).eval()  # without dropout


def test_the_tokens_of_a_word_are_of_that_word_and_the_marks_of_none():
    (piece,) = cut(Splitter(VOCABULARY), SENTENCES[1:2], {}, 32, trees=True).pieces
    assert piece.tree.words == [0, 1, 1, 2, 2, 3, 3]
    assert piece.tree.heads == (0, 1, 2)


def test_a_sentence_that_is_read_in_parts_keeps_its_tree():
    pieces = cut(Splitter(VOCABULARY), SENTENCES[1:2], {}, 6, trees=True).pieces
    assert [piece.tree.words for piece in pieces] == [[0, 1, 1, 2, 2], [0, 3, 3]]
    assert [piece.tree.heads for piece in pieces] == [(0, 1, 2)] * 2
    task, _ = made(Loaded({}, tagged={"train": SENTENCES[1:2], "valid": SENTENCES[:1]}), longest=6)
    assert task.batch([1]).depth.tolist() == [[0, 3, 3, 0]]


def test_batches_have_the_trees_of_their_rows_and_are_filled_up_with_rows_of_none():
    task, model = made()
    for rows in ([0, 4, 7], [6]):
        plain, filled = task.batch(rows), task.batch(rows, filled=True)
        width = filled.tokens_read.shape[1]
        assert filled.distance.shape == (120 // width, width, width)
        assert filled.depth[len(rows) :].abs().max() == 0
        torch.testing.assert_close(task.loss(model, filled), task.loss(model, plain))
        assert plain.to(torch.device("cpu")).distance.equal(plain.distance)


def test_without_trees_a_batch_has_none():
    task, _ = made(tree="none")
    assert task.batch([0]).tree is None


def steps(task: TaggingTask, model: Bert, number: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(number):
        loss = task.loss(model, task.batch(range(8), filled=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_the_loss_after_20_steps_is_what_it_was():
    task, model = made()
    steps(task, model, 20)
    assert task.validate(model)["loss"] == pytest.approx(0.17329, rel=2e-3)


@pytest.mark.parametrize("tree", ["depth", "distance"])
def test_what_the_tree_alone_tells_is_learned_by_who_reads_it(tree):
    task, model = made(tree=tree, position="none", layers=1)
    steps(task, model, 40)
    assert task.validate(model)["accuracy"] == 1.0
    found = tags_of(model, Splitter(VOCABULARY), [["ab"] * 4], 100, [(2, 3, 4, 0)])
    assert found[0][2:] == ["child", "root"]


def test_what_the_tree_alone_tells_is_not_learned_by_who_does_not_read_it():
    task, blind = made(tree="none", layers=1)
    steps(task, blind, 40)
    assert task.validate(blind)["accuracy"] < 0.8


def test_a_sentence_without_a_tree_is_refused_in_words():
    bare = Loaded({}, tagged={"train": [*SENTENCES, Tagged(("ab",), ("root",))], "valid": SENTENCES})
    with pytest.raises(InputError, match="sentence 9 has no head for each of its words, and the model reads dep"):
        made(bare)
    _, model = made()
    with pytest.raises(InputError, match="sentence 1 has no head for each of its words"):
        Tagger(model, VOCABULARY, "cpu")("ab ab")


def test_what_is_no_tree_is_refused_in_words():
    with pytest.raises(InputError, match="word 3 of sentence 1 is a second root"):
        tags_of(made()[1], Splitter(VOCABULARY), [["ab"] * 3], 100, [(0, 1, 0)])


def test_the_recipes_differ_in_the_trees_alone():
    plain, tree = read_recipe("ewt-bert-scratch"), read_recipe("ewt-bert-tree", ["data.column=deprel"])
    assert tree.model == {**plain.model, "tree": "both"}
    assert (plain.data.column, tree.data.column) == ("upos", "deprel")
    with pytest.raises(InputError, match=r"model\.tree 'both'"):
        read_recipe("polarity-bert", ["model.tree=both"])


def test_a_sentence_of_thousands_of_words_has_too_many_distances():
    words = ("w",) * 2001
    with pytest.raises(InputError, match=r"input 1 has 2,001 words.*at most 2,000"):
        parsed(Tagged(words, words, (0, *range(1, 2001))), "input 1")
