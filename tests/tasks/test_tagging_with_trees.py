"""Tagging with dependency trees: tree positions of tokens in parts and in batches."""

from typing import Any

import pytest
import torch

from qkv.datasets.batching import BatchSize
from qkv.datasets.dataset import Dataset, TaggedDataset
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.models.bert import Bert, BertConfig
from qkv.pipelines.inputs.text_inputs import ExampleEncoder
from qkv.pipelines.inputs.tree_inputs import require_heads
from qkv.pipelines.tagger import Tagger, encode_sentences, predict_tags
from qkv.tasks.tagging import TaggingTask
from qkv.tokenizers import CharTokenizer
from qkv.training.recipe import read_recipe
from tests.tasks.settings import prepare

# The tag of a word depends on the tree only: the root, a child of the root, or a child of a child.
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
TOKENIZER = CharTokenizer.train(["ab"])
DATA = TaggedDataset({"train": SENTENCES, "valid": SENTENCES})


def build(data: Dataset[Any] = DATA, longest: int = 32, **changes: Any) -> tuple[TaggingTask, Bert]:
    sizes = TaggingTask.sizes(data, TOKENIZER)
    torch.manual_seed(0)
    sizes |= {"head": "tagger", "dim": 16, "heads": 2, "layers": 2, "max_length": longest}
    config = BertConfig(**{**sizes, "tree": "both", **changes})
    task = prepare(TaggingTask, data, TOKENIZER, config, batch_size=120)
    return task, Bert(config).eval()  # without dropout


def test_tokens_belong_to_their_word_and_special_tokens_to_none():
    (example,) = encode_sentences(ExampleEncoder(TOKENIZER), SENTENCES[1:2], {}, 32, trees=True).examples
    assert example.tree.words == [0, 1, 1, 2, 2, 3, 3]
    assert example.tree.heads == (0, 1, 2)


def test_parts_of_a_long_sentence_keep_its_tree():
    examples = encode_sentences(ExampleEncoder(TOKENIZER), SENTENCES[1:2], {}, 6, trees=True).examples
    assert [example.tree.words for example in examples] == [[0, 1, 1, 2, 2], [0, 3, 3]]
    assert [example.tree.heads for example in examples] == [(0, 1, 2)] * 2
    task, _ = build(TaggedDataset({"train": SENTENCES[1:2], "valid": SENTENCES[:1]}), longest=6)
    assert task.batch([1]).depth.tolist() == [[0, 3, 3, 0]]


def test_batches_have_the_trees_of_their_rows_and_padding_has_none():
    task, model = build()
    for rows in ([0, 4, 7], [6]):
        plain, padded = task.batch(rows), task.batch(rows, padded_to_shape=True)
        width = padded.token_ids.shape[1]
        assert padded.distance.shape == (120 // width, width, width)
        assert padded.depth[len(rows) :].abs().max() == 0
        torch.testing.assert_close(task.loss(model, padded), task.loss(model, plain))
        assert plain.to(torch.device("cpu")).distance.equal(plain.distance)


def test_without_trees_a_batch_has_none():
    task, _ = build(tree="none")
    assert task.batch([0]).tree is None


def train(task: TaggingTask, model: Bert, number: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(number):
        loss = task.loss(model, task.batch(range(8), padded_to_shape=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_golden_loss_after_20_steps():
    task, model = build()
    train(task, model, 20)
    assert task.validate(model)["loss"] == pytest.approx(0.17329, rel=2e-3)


@pytest.mark.parametrize("tree", ["depth", "distance"])
def test_a_tree_model_learns_tags_that_depend_on_the_tree(tree):
    task, model = build(tree=tree, position="none", layers=1)
    train(task, model, 40)
    assert task.validate(model)["accuracy"] == 1.0
    tags = predict_tags(
        model, ExampleEncoder(TOKENIZER), [Tagged(("ab",) * 4, ("",) * 4, (2, 3, 4, 0))], BatchSize(100)
    )
    assert tags[0][2:] == ["child", "root"]


def test_a_model_without_trees_cannot_learn_them():
    task, blind = build(tree="none", layers=1)
    train(task, blind, 40)
    assert task.validate(blind)["accuracy"] < 0.8


def test_a_sentence_without_a_tree_is_an_error():
    bare = TaggedDataset({"train": [*SENTENCES, Tagged(("ab",), ("root",))], "valid": SENTENCES})
    with pytest.raises(InputError, match="sentence 9 has no head"):
        build(bare)
    _, model = build()
    with pytest.raises(InputError, match="sentence 1 has no head"):
        Tagger(model, TOKENIZER, "cpu")("ab ab")


def test_an_invalid_tree_is_an_error():
    with pytest.raises(InputError, match="word 3 of sentence 1 is a second root"):
        predict_tags(build()[1], ExampleEncoder(TOKENIZER), [Tagged(("ab",) * 3, ("",) * 3, (0, 1, 0))], BatchSize(100))


def test_the_recipes_differ_only_in_the_trees():
    plain, tree = read_recipe("ewt-bert-scratch"), read_recipe("ewt-bert-tree", ["data.column=deprel"])
    assert tree.model == plain.model.replace(tree="both")
    assert (plain.data.column, tree.data.column) == ("upos", "deprel")
    with pytest.raises(InputError, match=r"model\.tree 'both'"):
        read_recipe("polarity-bert", ["model.tree=both"])


def test_a_sentence_with_too_many_words_is_an_error():
    words = ("w",) * 2001
    with pytest.raises(InputError, match="2,001 words"):
        require_heads(Tagged(words, words, (0, *range(1, 2001))), "input 1")
