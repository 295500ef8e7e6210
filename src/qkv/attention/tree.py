"""Positions in a dependency tree: depths of words and distances between them.

Heads are as in CoNLL-U: words are numbered from 1, and the head of the root is 0. This is data preparation that runs
once per batch, outside the model; it inspects the values to reject inputs that are not trees.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch.nn import functional as F

from qkv.errors import InputError, ShapeError
from qkv.types import Bool, Int, Tensor


@final
@dataclass(frozen=True, eq=False)
class Trees:
    """The dependency trees of a batch of sentences, made by `Trees.from_heads`.

    Args:
        ancestors: Boolean tensor [batch, word, word]: at [b, i, j], j is i or an ancestor of i; false for padding.
    """

    ancestors: Bool[Tensor, "batch word word"]

    @classmethod
    def from_heads(cls, heads: Int[Tensor, "batch word"], lengths: Int[Tensor, "batch"] | None = None) -> "Trees":
        """Build the trees from the head of each word; words beyond a sentence's length are padding.

        Ancestors are found by pointer doubling: each iteration doubles the number of steps followed toward the root.
        """
        valid = _valid_words(heads, lengths)
        word = torch.arange(heads.shape[1], device=heads.device)
        _check_heads(heads, valid)
        parent = torch.where(valid & (heads > 0), heads.long() - 1, word)  # the root is its own parent
        ancestors = torch.eye(len(word), dtype=torch.bool, device=heads.device).expand(len(heads), -1, -1)
        jump = parent
        for _ in range((len(word) - 1).bit_length()):
            ancestors = ancestors | ancestors.gather(1, jump[..., None].expand_as(ancestors))
            jump = jump.gather(1, jump)
        in_cycle = ancestors.gather(1, parent[..., None].expand_as(ancestors)).diagonal(dim1=1, dim2=2)
        _raise_for_first(in_cycle & valid & (heads > 0), "is its own ancestor: the heads contain a cycle")
        return cls(ancestors & valid[..., None])

    @cached_property
    def depth(self) -> Int[Tensor, "batch word"]:
        """Number of edges from the root to each word, its absolute position (Wang et al. 2019); 0 for padding."""
        return (self.ancestors.sum(dim=-1) - 1).clamp(min=0)

    def relative(self) -> Int[Tensor, "batch word word"]:
        """Relative position of word i to word j as defined by Wang, Tu, Wang and Shi (2019).

        depth(i) - depth(j) if one is an ancestor of the other ("at the same edge" in the paper), else depth(i) +
        depth(j), the length of the path through the root, positive if i comes after j and negative if before. 0 for
        padding.
        """
        depth_i, depth_j = self.depth[:, :, None], self.depth[:, None, :]
        word = torch.arange(self.depth.shape[1], device=self.depth.device)
        order = torch.sign(word[:, None] - word)
        same_branch = self.ancestors | self.ancestors.transpose(1, 2)
        relative = torch.where(same_branch, depth_i - depth_j, order * (depth_i + depth_j))
        valid = self.ancestors.diagonal(dim1=1, dim2=2)
        return relative * (valid[:, :, None] & valid[:, None, :])


@final
@dataclass(frozen=True, eq=False)
class TreePositions:
    """Positions of a batch of tokens in the trees of their sentences, as passed to models.

    All tokens of a word have its position. Tokens that belong to no word, such as special tokens, are placed above the
    root, at the virtual node 0 of CoNLL-U: they are ancestors of every word.

    Args:
        depth: Edges from the virtual node 0, [batch, token]: 1 for the root, 0 for special tokens.
        distance: `Trees.relative` between the words of the tokens, [batch, token, token].
    """

    depth: Int[Tensor, "batch token"]
    distance: Int[Tensor, "batch token token"]

    @classmethod
    def from_tokens(cls, trees: Trees, words: Int[Tensor, "batch token"]) -> "TreePositions":
        """Compute positions from the number of the word of each token, 0 for tokens that belong to no word."""
        depth = F.pad(trees.depth + 1, (1, 0))
        distance = F.pad(trees.relative(), (1, 0, 1, 0))
        distance[:, :, 0], distance[:, 0, :] = depth, -depth
        sentence = torch.arange(len(words), device=words.device)[:, None]
        return cls(depth[sentence, words], distance[sentence[..., None], words[:, :, None], words[:, None, :]])


def _valid_words(heads: Int[Tensor, "batch word"], lengths: Int[Tensor, "batch"] | None) -> Bool[Tensor, "batch word"]:
    """Which words are not padding."""
    if heads.ndim != 2 or heads.is_floating_point():
        raise ShapeError("heads must be an integer tensor [batch, word]")
    if lengths is None:
        return torch.ones_like(heads, dtype=torch.bool)
    if lengths.shape != heads.shape[:1] or lengths.is_floating_point():
        raise ShapeError(f"lengths must be an integer tensor [{len(heads)}], one length per sentence")
    if ((lengths < 0) | (lengths > heads.shape[1])).any():
        raise InputError(f"lengths must be between 0 and {heads.shape[1]}, not {lengths.tolist()}")
    return torch.arange(heads.shape[1], device=heads.device) < lengths.to(heads.device)[:, None]


def _check_heads(heads: Int[Tensor, "batch word"], valid: Bool[Tensor, "batch word"]) -> None:
    length = valid.sum(dim=1, keepdim=True)
    _raise_for_first(
        valid & ((heads < 0) | (heads > length)),
        "has an invalid head: heads are word numbers from 1, or 0 for the root",
    )
    root = valid & (heads == 0)
    _raise_for_first(root & (root.cumsum(dim=1) > 1), "is a second root: only one word may have head 0")
    rootless = (~root.any(dim=1, keepdim=True) & valid).nonzero()
    if len(rootless):
        raise InputError(f"sentence {int(rootless[0, 0]) + 1} has no root: no word has head 0")


def _raise_for_first(invalid: Bool[Tensor, "batch word"], reason: str) -> None:
    """Raise for the first invalid word, if there is one."""
    indices = invalid.nonzero()
    if len(indices):
        sentence, word = (indices[0] + 1).tolist()
        raise InputError(f"word {word} of sentence {sentence} {reason}")
