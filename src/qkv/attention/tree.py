"""Places in a dependency tree: how deep a word stands, and how far two words are apart.

Heads are as in CoNLL-U: words are numbered from 1, and the head of the root is 0. This prepares data, and looks at the
numbers to refuse what is no tree; it runs once for a batch, and not in the layers of a model.
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
    """The dependency trees of a batch of sentences."""

    above: Bool[Tensor, "batch word word"]  # [b, i, j]: j is i, or stands above it; nothing does for padding

    @classmethod
    def of_heads(cls, heads: Int[Tensor, "batch word"], lengths: Int[Tensor, "batch"] | None = None) -> "Trees":
        """Read the head of each word; what stands beyond a sentence's length is padding.

        The way up from every word is found by doubling: knowing 2^n steps of it, and where they lead, one look there
        gives 2^n more.
        """
        real = _real(heads, lengths)
        word = torch.arange(heads.shape[1], device=heads.device)
        _check_heads(heads, real)
        parent = torch.where(real & (heads > 0), heads.long() - 1, word)  # the root is its own
        above = torch.eye(len(word), dtype=torch.bool, device=heads.device).expand(len(heads), -1, -1)
        leads_to = parent
        for _ in range((len(word) - 1).bit_length()):
            above = above | above.gather(1, leads_to[..., None].expand_as(above))
            leads_to = leads_to.gather(1, leads_to)
        below_itself = above.gather(1, parent[..., None].expand_as(above)).diagonal(dim1=1, dim2=2)
        _refuse(below_itself & real & (heads > 0), "is above itself: its heads run in a circle")
        return cls(above & real[..., None])

    @cached_property
    def depth(self) -> Int[Tensor, "batch word"]:
        """How many steps a word is from the root: its absolute position (Wang et al. 2019); 0 for padding."""
        return (self.above.sum(dim=-1) - 1).clamp(min=0)

    def relative(self) -> Int[Tensor, "batch word word"]:
        """The relative position of word i to word j, by the rule of Wang, Tu, Wang and Shi (2019).

        depth(i) - depth(j) where one stands above the other (the paper says: at the same edge), else depth(i) +
        depth(j), the way through the root, positive where i comes after j and negative where it comes before. 0 for
        padding.
        """
        return self._signed(self.depth[:, :, None] + self.depth[:, None, :])

    def path(self) -> Int[Tensor, "batch word word"]:
        """`relative`, with the length of the path from i to j in place of the way through the root.

        It turns round at the lowest word above both, a: its length is depth(i) + depth(j) - 2 depth(a).
        """
        above = self.above.float()
        shared = (above @ above.transpose(1, 2)).long()  # how many words are above both: depth(a) + 1
        return self._signed(self.depth[:, :, None] + self.depth[:, None, :] - 2 * (shared - 1))

    def _signed(self, apart: Int[Tensor, "batch word word"]) -> Int[Tensor, "batch word word"]:
        word = torch.arange(apart.shape[1], device=apart.device)
        order = torch.sign(word[:, None] - word)
        one_above_the_other = self.above | self.above.transpose(1, 2)
        signed = torch.where(one_above_the_other, self.depth[:, :, None] - self.depth[:, None, :], order * apart)
        real = self.above.diagonal(dim1=1, dim2=2)
        return signed * (real[:, :, None] & real[:, None, :])


@final
@dataclass(frozen=True, eq=False)
class TreePlaces:
    """Where the tokens of a batch stand in the trees of their sentences: what a model is told of trees.

    The tokens of a word stand where it stands. Tokens that are of no word, such as the marks at the edges of a text,
    stand above the root, at the 0 that CoNLL-U gives it as its head: every word is below them.
    """

    depth: Int[Tensor, "batch token"]  # steps from the top, where the marks are: 1 for the root
    distance: Int[Tensor, "batch token token"]  # `Trees.relative` of their words

    @classmethod
    def of_tokens(cls, trees: Trees, words: Int[Tensor, "batch token"]) -> "TreePlaces":
        """The places of tokens, by the number of the word that each is of; 0 for a token of none."""
        depth = F.pad(trees.depth + 1, (1, 0))
        distance = F.pad(trees.relative(), (1, 0, 1, 0))
        distance[:, :, 0], distance[:, 0, :] = depth, -depth
        sentence = torch.arange(len(words), device=words.device)[:, None]
        between = distance[sentence[..., None], words[:, :, None], words[:, None, :]]
        return cls(depth[sentence, words], between)


def _real(heads: Int[Tensor, "batch word"], lengths: Int[Tensor, "batch"] | None) -> Bool[Tensor, "batch word"]:
    """Which words are no padding."""
    if heads.ndim != 2 or heads.is_floating_point():
        raise ShapeError("trees are given as the head of each word, a tensor of whole numbers [batch, word]")
    if lengths is None:
        return torch.ones_like(heads, dtype=torch.bool)
    if lengths.shape != heads.shape[:1] or lengths.is_floating_point():
        raise ShapeError(f"there are {len(heads)} sentences: lengths must be as many whole numbers")
    if ((lengths < 0) | (lengths > heads.shape[1])).any():
        raise InputError(f"lengths must lie between 0 and {heads.shape[1]} words, but they are {lengths.tolist()}")
    return torch.arange(heads.shape[1], device=heads.device) < lengths.to(heads.device)[:, None]


def _check_heads(heads: Int[Tensor, "batch word"], real: Bool[Tensor, "batch word"]) -> None:
    length = real.sum(dim=1, keepdim=True)
    _refuse(
        real & ((heads < 0) | (heads > length)),
        "has a head that is not there: heads are the numbers of words, from 1, or 0 for the root",
    )
    root = real & (heads == 0)
    _refuse(root & (root.cumsum(dim=1) > 1), "is a second root: one word of a sentence has head 0")
    rootless = (~root.any(dim=1, keepdim=True) & real).nonzero()
    if len(rootless):
        raise InputError(f"sentence {int(rootless[0, 0]) + 1} has no root: none of its words has head 0")


def _refuse(words: Bool[Tensor, "batch word"], what: str) -> None:
    """Raise for the first of these words, if there is one."""
    found = words.nonzero()
    if len(found):
        sentence, word = (found[0] + 1).tolist()
        raise InputError(f"word {word} of sentence {sentence} {what}")
