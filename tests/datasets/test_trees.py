"""Constituency trees: parsing, printing, linearization, limits and errors."""

import os
import random

import pytest

from qkv.datasets.corpora.text.gum import GUM
from qkv.datasets.dataset import TreeDataset
from qkv.datasets.examples.trees import (
    MAX_DEPTH,
    MAX_SYMBOL,
    MAX_WORDS,
    Constituent,
    Tree,
    escape_brackets,
    parse_trees,
)
from qkv.datasets.user_texts import UserTrees
from qkv.errors import InputError

CAT = "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .)))"


def random_tree(generator, words):
    """A random bracketed tree, built recursively, and its constituents in preorder."""
    constituents, counter = [], iter(range(words))

    def build(count, top):
        unary = generator.random() < 0.2
        if count == 1 and not top and not unary:
            index = next(counter)
            return f"(T{index % 3} w{index})", index, index + 1
        label = generator.choice("XYZ")
        index = len(constituents)
        constituents.append(None)
        cuts = sorted(generator.sample(range(1, count), min(count - 1, generator.randint(0 if unary else 1, 3))))
        sizes = [end - start for start, end in zip([0, *cuts], [*cuts, count], strict=True)]
        parts = [build(size, False) for size in sizes]
        constituents[index] = Constituent(label, parts[0][1], parts[-1][2])
        return f"({label} {' '.join(text for text, _, _ in parts)})", parts[0][1], parts[-1][2]

    return f"(TOP {build(words, True)[0]})", tuple(constituents)


def test_words_tags_and_constituents_of_a_tree():
    tree = Tree.parse(CAT, "line 1")
    assert tree.words == ("The", "cat", "sleeps", ".")
    assert tree.tags == ("DT", "NN", "VBZ", ".")
    assert tree.constituents == (("S", 0, 4), ("NP", 0, 2), ("VP", 2, 3))
    assert tree.symbols() == ["(S", "(NP", "DT", "NN", ")NP", "(VP", "VBZ", ")VP", ".", ")S"]
    assert tree.symbols(tags=False) == ["(S", "(NP", "XX", "XX", ")NP", "(VP", "XX", ")VP", "XX", ")S"]
    assert str(tree) == CAT


def test_random_trees_are_read_printed_and_linearized_without_loss():
    generator = random.Random(0)
    for _ in range(100):
        text, constituents = random_tree(generator, generator.randint(1, 12))
        tree = Tree.parse(text, "tree")
        assert tree.constituents == constituents
        assert str(tree) == text
        assert Tree.from_symbols(tree.symbols(), tree.words, "tree") == tree


@pytest.mark.parametrize("root", ["TOP ", "ROOT ", ""])
def test_a_root_with_one_child_is_left_out(root):
    assert Tree.parse(f"({root}(S (NN a) (NN b)))", "x") == Tree.parse("(S (NN a) (NN b))", "x")
    assert Tree.parse(f"({root}(NN a))", "x").constituents == ()


def test_a_root_with_several_children_is_kept():
    assert Tree.parse("(TOP (NN a) (NN b))", "x").constituents == (("TOP", 0, 2),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a b", "begins with"),
        ("(TOP (S (NN a))", "not closed"),
        ("(TOP (S (NN a))))", "after the tree"),
        ("(S (NN a)) (S (NN b))", "after the tree"),
        ("(TOP (S (NP) (NN a)))", "empty"),
        ("(TOP ())", "empty"),
        ("(TOP (S a (NN b)))", "tag"),
        ("(TOP (S (NN a b)))", "tag"),
        ("(" * 100_000, "not closed|deeper"),
        ("(S " * (MAX_DEPTH + 1) + "(NN a)" + ")" * (MAX_DEPTH + 1), "deeper"),
        ("(S " + "(NN a)" * (MAX_WORDS + 1) + ")", "words"),
        (f"(S (NN {'a' * (MAX_SYMBOL + 1)}) (NN b))", "characters"),
        (f"(S ({'N' * (MAX_SYMBOL + 1)} a) (NN b))", "characters"),
    ],
)
def test_broken_trees_name_the_file_and_the_line(text, problem):
    with pytest.raises(InputError, match=problem) as error:
        parse_trees([CAT, "", text], "trees.txt")
    assert str(error.value).startswith("trees.txt: line 3: ")
    assert len(str(error.value)) < 400


def test_symbols_that_are_no_tree_are_rejected():
    for symbols, words in ([["(S", "NN", ")NP"], "a"], [["(S", "NN"], "a"], [["(S", "NN", ")S"], "ab"], [[")S"], ""]):
        with pytest.raises(InputError):
            Tree.from_symbols(symbols, words, "x")


def test_brackets_in_words_are_escaped():
    assert [escape_brackets(word) for word in ("(", ")", "a(b)", "x")] == ["-LRB-", "-RRB-", "a-LRB-b-RRB-", "x"]


def test_user_files_are_split_by_sentence(tmp_path):
    file = tmp_path / "trees.txt"
    file.write_text("\n".join(f"(TOP (S (NN w{number}) (VB go)))" for number in range(40)), encoding="utf-8")
    data = UserTrees(train=(str(file),), valid_share=0.25).load()
    assert isinstance(data, TreeDataset)
    assert (len(data.splits["train"]), len(data.splits["valid"])) == (30, 10)
    assert next(data.preview("train"))["tree"].startswith("(TOP (S (NN w")


@pytest.mark.corpus
@pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA names no folder with the real data sets")
def test_treebanks_are_read_and_printed_without_loss():
    config = GUM(with_ptb_sample=True)
    data = config.load()
    assert {split: len(trees) for split, trees in data.splits.items()} == {"train": 13620, "valid": 1575, "test": 1464}
    lines = [line for path in config.fetch() for line in path.read_text(encoding="utf-8").splitlines()]
    trees = [*data.splits["train"][:10224], *data.splits["valid"], *data.splits["test"]]
    assert [str(tree) for tree in trees] == lines
    assert all(Tree.from_symbols(tree.symbols(), tree.words, "tree") == tree for tree in trees)
