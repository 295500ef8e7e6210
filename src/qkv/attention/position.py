"""Positions inside the operator: terms that turn queries and keys, shift scores, or add to what is read.

Positions that are added to embeddings are in `qkv.attention.encoding`.
"""

from abc import ABC
from collections.abc import Callable

from qkv.attention.extent import Extent, Places
from qkv.types import Float, Int, Tensor

Bias = Callable[[Places], Float[Tensor, "..."]]


class Position(ABC):
    """What the places of queries and keys have to say. A term overrides what it does, and says that it does."""

    turns = False  # queries and keys before they are compared
    biases = False  # adds to the scores
    reads = False  # adds to what is read
    extrapolates: bool  # whether it is defined at places beyond those that it was trained on

    def turn(
        self, x: Float[Tensor, "batch heads length dim"], places: Int[Tensor, "#batch length"]
    ) -> Float[Tensor, "batch heads length dim"]:
        """Queries or keys, transformed by the places they stand at."""
        return x

    def bias(self, query: Float[Tensor, "batch heads query dim"], extent: Extent) -> Bias:
        """What to add to the score of a cell; `query` is what came out of `turn`."""
        raise NotImplementedError(f"{type(self).__name__} adds nothing to the scores")

    def read(
        self, weights: Float[Tensor, "batch heads query key"], extent: Extent
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """What to add to the output, given the weights behind it."""
        raise NotImplementedError(f"{type(self).__name__} adds nothing to the output")
