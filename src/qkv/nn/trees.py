"""What an encoder is told of dependency trees, by the words of its config (Wang, Tu, Wang and Shi 2019).

    depth       D[depth of t] is added to the embedding of each token: an absolute position
    distance    self-attention has vectors for the distance between two words along the tree: a relative one
    both        both

The trees are given with each call, and not found by the model.
"""

from qkv.attention import Learned, Position, TreePositions, TreeRelative
from qkv.config import require, require_known
from qkv.errors import InputError
from qkv.nn.block import Block
from qkv.nn.embed import POSITIONS
from qkv.types import Float, Tensor

TREES = ("none", "depth", "distance", "both")
DEEPEST = 32  # words that are deeper in a tree are not told apart


class ReadsTrees:
    """The config of an encoder that may be told where words stand in trees, beside where they stand in the text."""

    tree: str  # one of TREES
    position: str

    @property
    def reads_trees(self) -> bool:
        """Whether it has to be told the trees of what it reads."""
        return self.tree != "none"

    @property
    def adds_depths(self) -> bool:
        """Whether embeddings are told how deep words are in a tree."""
        return self.tree in ("depth", "both")

    @property
    def measures_trees(self) -> bool:
        """Whether self-attention is told how far words are apart in a tree."""
        return self.tree in ("distance", "both")

    def require_tree(self) -> None:
        """Raise for a word that is not known, or where self-attention would be told of two distances."""
        require_known(self, tree=TREES)
        require(
            not self.measures_trees or self.position not in POSITIONS,
            f"tree {self.tree!r} and position {self.position!r} both want to be the distance in self-attention: "
            f"choose a position other than {', '.join(POSITIONS)}",
        )

    def require_told(self, tree: TreePositions | None, model: str) -> None:
        """Raise where a call of the model lacks its trees, or has some that are not read."""
        if (tree is not None) != self.reads_trees:
            reads = (
                "reads dependency trees, and was given none: tag, view and translate take parsed sentences (*.conllu)"
                if tree is None
                else "was built to read no trees"
            )
            raise InputError(f"this {model} {reads}; its tree is {self.tree!r}, one of {', '.join(TREES)}")


def depth_encoding(config: ReadsTrees, dim: int) -> Learned | None:
    """D, where embeddings are told of depths."""
    return Learned(DEEPEST + 1, dim) if config.adds_depths else None


def depth_vectors(depths: Learned | None, tree: TreePositions | None) -> Float[Tensor, "batch length dim"] | None:
    """D[depth of t] for each token, where embeddings are told of depths."""
    return None if depths is None or tree is None else depths.at(tree.depth.clamp(max=DEEPEST))


def in_the_tree(block: Block, tree: TreePositions | None) -> Position | None:
    """What the self-attention of a block is told of the trees of one call; None where it reads none."""
    within = block.attention.attend.position
    return within.with_distances(tree.distance) if isinstance(within, TreeRelative) and tree is not None else None
