"""Dependency trees of sentences, and the tree positions of their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from qkv.attention import TreePositions, Trees
from qkv.datasets.tagged import Tagged
from qkv.errors import InputError


@dataclass(frozen=True)
class Tree:
    """The dependency tree of a sentence, and the word that each token of an example belongs to."""

    heads: tuple[int, ...]  # of all words of the sentence, of which an example may hold a part
    words: list[int]  # of each token, from 1; 0 for special tokens, which belong to no word


MAX_WORDS = 2000  # per sentence; the longest real ones have a few hundred
EMPTY_TREE = Tree((), [])  # of a padding row


def reads_trees(config: Any) -> bool:
    """Whether a model with this config needs dependency trees."""
    return getattr(config, "tree", "none") != "none"


class ParsedSentence(NamedTuple):
    """The words of a sentence and their heads."""

    words: tuple[str, ...]
    heads: tuple[int, ...]


def require_heads(sentence: str | Tagged, name: str) -> ParsedSentence:
    """Return the words and heads of a sentence, or raise an error that starts with `name` if it has no heads."""
    if isinstance(sentence, str) or sentence.heads is None or len(sentence.heads) != len(sentence.words):
        raise InputError(
            f"{name} has no head for each of its words, and the model reads dependency trees (model.tree): pass "
            "sentences in CoNLL-U (*.conllu), or use a model without trees"
        )
    if len(sentence.words) > MAX_WORDS:
        raise InputError(
            f"{name} has {len(sentence.words):,} words; pairwise tree distances are limited to sentences of "
            f"at most {MAX_WORDS:,}"
        )
    return ParsedSentence(sentence.words, sentence.heads)


def tree_positions(trees: Sequence[Tree], width: int) -> TreePositions:
    """Tree positions of the tokens of a batch, padded to `width`.

    Computed here once and not in the model, because validating the trees reads values, which would synchronize with
    the GPU.
    """
    max_words = max(len(tree.heads) for tree in trees)
    heads = torch.tensor([[*tree.heads, *[0] * (max_words - len(tree.heads))] for tree in trees], dtype=torch.long)
    words = torch.tensor([tree.words + [0] * (width - len(tree.words)) for tree in trees])
    lengths = torch.tensor([len(tree.heads) for tree in trees])
    return TreePositions.from_tokens(Trees.from_heads(heads, lengths), words)
