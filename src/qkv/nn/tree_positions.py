"""Dependency-tree positions in encoders (Wang, Tu, Wang and Shi 2019).

    depth       D[depth of t] is added to the embedding of each token: an absolute position
    distance    self-attention uses embeddings of the distance between two words along the tree: a relative position
    both        both

The trees are inputs of each call; the model does not predict them.
"""

from qkv.attention import Learned, Position, TreePositions, TreeRelative
from qkv.config import require, require_known
from qkv.errors import InputError
from qkv.nn.block import Block
from qkv.nn.embedding import POSITIONS
from qkv.types import Float, Tensor

TREES = ("none", "depth", "distance", "both")
MAX_TREE_DEPTH = 32  # larger depths are clipped


class TreeConfig:
    """Config mixin for encoders that can use tree positions in addition to sequence positions."""

    tree: str  # one of TREES
    position: str

    @property
    def uses_trees(self) -> bool:
        """Whether the model takes dependency trees as input."""
        return self.tree != "none"

    @property
    def uses_tree_depth(self) -> bool:
        """Whether tree depths are added to the embeddings."""
        return self.tree in ("depth", "both")

    @property
    def uses_tree_distance(self) -> bool:
        """Whether self-attention uses tree distances."""
        return self.tree in ("distance", "both")

    def check_tree(self) -> None:
        """Raise for an unknown `tree`, or if it conflicts with a relative `position`."""
        require_known(self, tree=TREES)
        require(
            not self.uses_tree_distance or self.position not in POSITIONS,
            f"tree {self.tree!r} cannot be combined with position {self.position!r}: both are relative positions in "
            f"self-attention; choose a position other than {', '.join(POSITIONS)}",
        )

    def check_tree_input(self, tree: TreePositions | None, model: str) -> None:
        """Raise if a call lacks the trees that the model needs, or passes trees that it does not use."""
        if (tree is not None) != self.uses_trees:
            problem = (
                "needs dependency trees: tag, view and translate take parsed sentences (*.conllu)"
                if tree is None
                else "does not take dependency trees"
            )
            raise InputError(f"this {model} {problem}; its tree is {self.tree!r}, one of {', '.join(TREES)}")


def depth_encoding(config: TreeConfig, dim: int) -> Learned | None:
    """Return D, or None if the model does not use tree depth."""
    return Learned(MAX_TREE_DEPTH + 1, dim) if config.uses_tree_depth else None


def depth_vectors(depths: Learned | None, tree: TreePositions | None) -> Float[Tensor, "batch length dim"] | None:
    """Return D[depth of t] for each token, or None if the model does not use tree depth."""
    return None if depths is None or tree is None else depths.at(tree.depth.clamp(max=MAX_TREE_DEPTH))


def tree_position(block: Block, tree: TreePositions | None) -> Position | None:
    """Return the tree position for a block's self-attention, or None if it uses none."""
    position = block.attention.attend.position
    return position.with_distances(tree.distance) if isinstance(position, TreeRelative) and tree is not None else None
