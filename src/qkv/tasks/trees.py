"""The dependency trees of sentences, as a model is told of them: a place for each token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from qkv.attention import TreePlaces, Trees


@dataclass(frozen=True)
class Tree:
    """The tree of a sentence, and which of its words the tokens of a piece are of."""

    heads: tuple[int, ...]  # of all words of the sentence, of which a piece may hold a part
    words: list[int]  # of each token, from 1; 0 for the marks at the edges, which are of no word


NOTHING = Tree((), [])  # of a row that has no text


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
