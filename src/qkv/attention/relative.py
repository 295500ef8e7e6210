"""Relative positions with a learned vector per distance, along the sequence or in a dependency tree."""

import math
from collections.abc import Callable
from typing import final

import torch
from torch import nn

from qkv.attention.position import Bias, Position
from qkv.attention.precision import upcast_dtype
from qkv.attention.score import Sizes
from qkv.attention.score_shape import CellIndex, Index, Outputs, Queries, ScoreShape, Weights
from qkv.config import Size
from qkv.errors import InputError, ShapeError
from qkv.registry import register
from qkv.types import Int, Tensor

Distance = Callable[[Index], Int[Tensor, "..."]]


class RelativeEmbeddings(nn.Module, Position):
    """Vectors a^K and a^V for the distances -D ... D, shared by all heads; larger distances are clipped to D.

    With r = clip(distance(i, j), -D, D),

        score(i, j) += q_i . a^K_r / sqrt(dim)          output_i += sum_j weight(i, j) a^V_r

    No vector per query-key pair is materialized: a query is multiplied with each of the 2D+1 vectors once, and the
    weights of keys at the same distance are summed before the product with a^V. The fused kernels do not support a^V,
    so they serve this term only with `values=False`. Distances beyond D are defined, but not distinguished.
    """

    adds_bias = True
    gathers_bias = True

    def __init__(self, dim: int, max_distance: int, value_dim: int | None = None, values: bool = True) -> None:
        """Initialize the vectors.

        Args:
            dim: Features of a query.
            max_distance: D, the greatest distance with a vector of its own.
            value_dim: Features of a value; by default `dim`.
            values: Whether to add a^V to the output.
        """
        super().__init__()
        if max_distance < 0:
            raise InputError(f"max_distance must not be negative, but it is {max_distance}")
        self.dim, self.max_distance, self.value_dim, self.values = dim, max_distance, value_dim, values
        self.adds_to_output = values
        self.key = _table(max_distance, dim)  # a^K
        self.value = _table(max_distance, dim if value_dim is None else value_dim) if values else None  # a^V

    def bias_by_distance(self, distance: Distance, query: Queries) -> Bias:
        """Return the bias q . a^K / sqrt(dim) for the distance at each cell."""
        dim = self.key.shape[1]
        if query.shape[-1] != dim:
            raise ShapeError(f"{type(self).__name__} expects queries of {dim} features, not {query.shape[-1]}")
        scores = ((query / math.sqrt(dim)) @ self.key.t()).to(upcast_dtype(query.dtype))  # b h q distance
        return lambda index: index.per_query(scores, self._row(distance(index))).to(query.dtype)

    def output_by_distance(self, distance: Distance, weights: Weights, shape: ScoreShape) -> Outputs:
        """Return sum_j weight(i, j) a^V for the distance at each cell."""
        if self.value is None:
            raise InputError(f"this {type(self).__name__} has no value vectors (values=False)")
        row = self._row(distance(CellIndex(shape))).expand(weights.shape)
        # bfloat16 sums over all keys beyond D would stagnate, here and in the gradient of `bias_by_distance`.
        weight = weights.to(upcast_dtype(weights.dtype))
        weight_by_distance = weight.new_zeros(*weight.shape[:3], len(self.value)).scatter_add(-1, row, weight)
        return weight_by_distance.to(weights.dtype) @ self.value

    def _row(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Row of a distance in the tables."""
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance


@final
@register("position", "relative")
class Relative(RelativeEmbeddings):
    """Vectors for the distance j - i between a query at position i and a key at position j (Shaw et al. 2018)."""

    @classmethod
    def from_sizes(cls, sizes: Sizes, *, max_distance: Size = 16) -> "Relative":  # D; larger distances are clipped
        return cls(sizes.query, max_distance)

    def bias(self, query: Queries, shape: ScoreShape) -> Bias:
        return self.bias_by_distance(_sequence_distance, query)

    def add_to_output(self, weights: Weights, shape: ScoreShape) -> Outputs:
        return self.output_by_distance(_sequence_distance, weights, shape)


@final
class TreeRelative(RelativeEmbeddings):
    """Vectors for the distance between two words in a tree (Wang, Tu, Wang and Shi 2019).

    The distances depend on the sentences, so each call binds its own: `position=term.with_distances(distances)`, with
    distances computed by `qkv.attention.tree`.
    """

    def with_distances(self, distances: Int[Tensor, "#batch query key"]) -> "BoundTreeRelative":
        """Bind this term to the distances of one call."""
        return BoundTreeRelative(self, distances)

    def bias(self, query: Queries, shape: ScoreShape) -> Bias:
        raise InputError("TreeRelative needs tree distances: pass position=term.with_distances(distances)")


@final
class BoundTreeRelative(Position):
    """A `TreeRelative` bound to the distances of one call."""

    adds_bias = True
    gathers_bias = True

    def __init__(self, term: TreeRelative, distances: Int[Tensor, "#batch query key"]) -> None:
        if distances.ndim != 3 or distances.is_floating_point():
            raise ShapeError(
                "with_distances takes an integer tensor [batch, query, key], "
                f"not {distances.dtype} {list(distances.shape)}"
            )
        self.term = term
        self.adds_to_output = term.adds_to_output
        self.distances = distances.to(term.key.device, torch.long)[:, None]  # b 1 q k

    def bias(self, query: Queries, shape: ScoreShape) -> Bias:
        self._check(shape)
        return self.term.bias_by_distance(self._tree_distance, query)

    def add_to_output(self, weights: Weights, shape: ScoreShape) -> Outputs:
        return self.term.output_by_distance(self._tree_distance, weights, shape)

    def _tree_distance(self, index: Index) -> Int[Tensor, "..."]:
        return index.per_cell(self.distances)

    def _check(self, shape: ScoreShape) -> None:
        batch, _, queries, keys = self.distances.shape
        all_queries = shape.query_subset is None
        if batch not in (1, shape.batch) or keys != shape.keys or (all_queries and queries != shape.queries):
            raise ShapeError(
                f"distances have {queries} queries, {keys} keys and batch size {batch}, but the call has "
                f"{shape.queries} queries, {shape.keys} keys and batch size {shape.batch}"
            )


def _sequence_distance(index: Index) -> Int[Tensor, "..."]:
    return index.key - index.query_position


def _table(max_distance: int, dim: int) -> nn.Parameter:
    """A vector for each distance, with Xavier uniform initialization."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * max_distance + 1, dim)))
