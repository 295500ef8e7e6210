"""Dependency-tree positions in encoders (Wang, Tu, Wang and Shi 2019), in addition to sequence positions.

    depth       x_i += D[depth(i)], an absolute position
    distance    score(i, j) += q_i . K[r] / sqrt(d),   output_i += sum_j a_ij V[r],   a relative position
    both        both

with r = distance(i, j): depth(i) - depth(j) if one word is an ancestor of the other, else depth(i) + depth(j), negative
if i comes first. D, K and V are learned; large depths and distances are clipped. Special tokens are above the root.
The depths and distances are inputs of each call, a `TreePositions`; the model does not predict them.
"""

from typing import Literal, get_args

from torch import nn

from qkv.attention import Learned, Position, TreePositions, TreeRelative
from qkv.config import Term, require
from qkv.errors import InputError
from qkv.nn.embedding import is_encoding
from qkv.types import Float, Tensor

TreeKind = Literal["none", "depth", "distance", "both"]
MAX_DEPTH = 32  # larger depths are clipped
MAX_DISTANCE = 16  # larger distances are clipped


def check_tree(tree: TreeKind, position: Term) -> None:
    """Raise ConfigError if a config has relative positions both in the tree and in the sequence."""
    require(
        tree in ("none", "depth") or position.name == "none" or is_encoding(position),
        f"tree {tree!r} cannot be combined with position {position.name!r}: both act inside self-attention; choose a "
        "position that is added to the embeddings, or none",
    )


def check_tree_input(tree: TreeKind, positions: TreePositions | None) -> None:
    """Raise if a call lacks the trees that the model needs, or passes trees that it does not use."""
    if (positions is None) != (tree == "none"):
        problem = (
            "needs dependency trees: tag, view and translate take parsed sentences (*.conllu)"
            if positions is None
            else "does not take dependency trees"
        )
        raise InputError(f"this model {problem}; its tree is {tree!r}, one of {', '.join(get_args(TreeKind))}")


class TreeDepth(nn.Module):
    """x + D[depth of t] for each token, or x if the model does not use tree depth."""

    def __init__(self, tree: TreeKind, dim: int) -> None:
        super().__init__()
        self.embed = Learned(MAX_DEPTH + 1, dim) if tree in ("depth", "both") else None  # D

    def forward(
        self, x: Float[Tensor, "batch length dim"], tree: TreePositions | None
    ) -> Float[Tensor, "batch length dim"]:
        if self.embed is None or tree is None:
            return x
        return x + self.embed.at(tree.depth.clamp(max=MAX_DEPTH))


class TreeDistance(nn.Module):
    """The position term of tree distances for one call of self-attention, or None if the model does not use them."""

    def __init__(self, tree: TreeKind, head_dim: int) -> None:
        super().__init__()
        self.relative = TreeRelative(head_dim, MAX_DISTANCE) if tree in ("distance", "both") else None

    def forward(self, tree: TreePositions | None) -> Position | None:
        if self.relative is None or tree is None:
            return None
        return self.relative.with_distances(tree.distance)
