"""The dependency trees of sentences, as a model is told of them: a place for each token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from qkv.attention import TreePlaces, Trees
from qkv.data.tagged import Tagged
from qkv.errors import InputError


@dataclass(frozen=True)
class Tree:
    """The tree of a sentence, and which of its words the tokens of a piece are of."""

    heads: tuple[int, ...]  # of all words of the sentence, of which a piece may hold a part
    words: list[int]  # of each token, from 1; 0 for the marks at the edges, which are of no word


MOST_WORDS = 2000  # of a sentence: the largest of real ones have some hundreds
NOTHING = Tree((), [])  # of a row that has no text


def reads_trees(config: Any) -> bool:
    """Whether a model with this config wants to know the trees of sentences."""
    return getattr(config, "uses_trees", False)


class Parsed(NamedTuple):
    """The words of a sentence, and the head of each."""

    words: tuple[str, ...]
    heads: tuple[int, ...]


def parsed(given: str | Tagged, name: str) -> Parsed:
    """A sentence for a model that reads trees; `name` opens the error where its heads are not known."""
    if isinstance(given, str) or given.heads is None or len(given.heads) != len(given.words):
        raise InputError(
            f"{name} has no head for each of its words, and the model reads dependency trees (model.tree): give it "
            "sentences in CoNLL-U, from a file *.conllu, or train one without"
        )
    if len(given.words) > MOST_WORDS:
        raise InputError(
            f"{name} has {len(given.words):,} words, and the distances in a tree are of each to each: cut it into "
            f"sentences of at most {MOST_WORDS:,}"
        )
    return Parsed(given.words, given.heads)


def tree_places(trees: Sequence[Tree], width: int) -> TreePlaces:
    """The places of the tokens of a batch, whose rows are filled up to so many.

    They are looked up here, once, and not in the model: to refuse what is no tree takes looking at numbers, for which a
    GPU would have to be waited.
    """
    longest = max(len(tree.heads) for tree in trees)
    heads = torch.tensor([[*tree.heads, *[0] * (longest - len(tree.heads))] for tree in trees], dtype=torch.long)
    words = torch.tensor([tree.words + [0] * (width - len(tree.words)) for tree in trees])
    lengths = torch.tensor([len(tree.heads) for tree in trees])
    return TreePlaces.of_tokens(Trees.of_heads(heads, lengths), words)
