"""Positions with a vector for each distance, along the sentence or along a tree."""

import math
from collections.abc import Callable
from typing import final

import torch
from torch import nn

from qkv.attention.extent import Cells, Extent, Places
from qkv.attention.position import Bias, Position
from qkv.attention.precision import exact
from qkv.errors import InputError, ShapeError
from qkv.types import Float, Int, Tensor

Distance = Callable[[Places], Int[Tensor, "..."]]


class Distances(nn.Module, Position):
    """Vectors a^K and a^V for the distances -D ... D, shared by all heads; what is further apart counts as D.

    With r = clip(distance(i, j), -D, D),

        score(i, j) += q_i . a^K_r / sqrt(dim)          output_i += sum_j weight(i, j) a^V_r

    Neither makes a vector for each pair: a query meets each of the 2D+1 vectors once, and the weights of keys at equal
    distance are added up before they meet theirs. The fused kernels know nothing of a^V: without it (`values=False`)
    they serve this term. Distances beyond D are defined, but not told apart.
    """

    biases = True
    looks_up = True
    extrapolates = True

    def __init__(self, dim: int, max_distance: int, value_dim: int | None = None, values: bool = True) -> None:
        super().__init__()
        if max_distance < 0:
            raise InputError(f"max_distance must not be negative, but it is {max_distance}")
        self.max_distance = max_distance
        self.reads = values
        self.key = _table(max_distance, dim)  # a^K
        self.value = _table(max_distance, dim if value_dim is None else value_dim) if values else None  # a^V

    def bias_by(self, distance: Distance, query: Float[Tensor, "batch heads query dim"]) -> Bias:
        """q . a^K / sqrt(dim), for the distance at each cell."""
        dim = self.key.shape[1]
        if query.shape[-1] != dim:
            raise ShapeError(
                f"{type(self).__name__} was made for queries of {dim} features, but they have {query.shape[-1]}"
            )
        scores = ((query / math.sqrt(dim)) @ self.key.t()).to(exact(query.dtype))  # b h q distance
        return lambda at: at.of_query(scores, self._row(distance(at))).to(query.dtype)

    def read_by(
        self, distance: Distance, weights: Float[Tensor, "batch heads query key"], extent: Extent
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """sum_j weight(i, j) a^V, for the distance at each cell."""
        if self.value is None:
            raise InputError(f"this {type(self).__name__} was made without vectors for values: nothing can be read")
        row = self._row(distance(Cells(extent))).expand(weights.shape)
        # Sums over all keys beyond D would stand still in bfloat16, here and in the gradient of `bias_by`.
        weight = weights.to(exact(weights.dtype))
        weight_of_distance = weight.new_zeros(*weight.shape[:3], len(self.value)).scatter_add(-1, row, weight)
        return weight_of_distance.to(weights.dtype) @ self.value

    def _row(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Where the vectors of a distance stand in the tables."""
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance


@final
class Relative(Distances):
    """Vectors for the distance j - i between a query at place i and a key at place j (Shaw et al. 2018)."""

    def bias(self, query: Float[Tensor, "batch heads query dim"], extent: Extent) -> Bias:
        return self.bias_by(_along_the_sentence, query)

    def read(
        self, weights: Float[Tensor, "batch heads query key"], extent: Extent
    ) -> Float[Tensor, "batch heads query value_dim"]:
        return self.read_by(_along_the_sentence, weights, extent)


@final
class TreeRelative(Distances):
    """Vectors for the distance between two words in a tree (Wang, Tu, Wang and Shi 2019).

    The distances are those of the sentences at hand: `attend(..., position=tree_relative.between(distances))`, with
    distances as `qkv.attention.tree` computes them.
    """

    def between(self, distances: Int[Tensor, "#batch query key"]) -> "BetweenWords":
        """This term for one call, whose queries and keys stand so far from each other."""
        return BetweenWords(self, distances)

    def bias(self, query: Float[Tensor, "batch heads query dim"], extent: Extent) -> Bias:
        raise InputError("TreeRelative does not know the trees: give the operator position=term.between(distances)")


@final
class BetweenWords(Position):
    """A `TreeRelative` together with the distances of one call."""

    biases = True
    looks_up = True
    extrapolates = True

    def __init__(self, term: TreeRelative, distances: Int[Tensor, "#batch query key"]) -> None:
        if distances.ndim != 3 or distances.is_floating_point():
            raise ShapeError(
                "between takes the distance of each query and key, as a tensor of whole numbers [batch, query, key], "
                f"not one of {distances.dtype} {list(distances.shape)}"
            )
        self.term = term
        self.reads = term.reads
        self.distances = distances.to(term.key.device, torch.long)[:, None]  # b 1 q k

    def bias(self, query: Float[Tensor, "batch heads query dim"], extent: Extent) -> Bias:
        self._check(extent)
        return self.term.bias_by(self._in_the_tree, query)

    def read(
        self, weights: Float[Tensor, "batch heads query key"], extent: Extent
    ) -> Float[Tensor, "batch heads query value_dim"]:
        return self.term.read_by(self._in_the_tree, weights, extent)

    def _in_the_tree(self, at: Places) -> Int[Tensor, "..."]:
        return at.of_cell(self.distances)

    def _check(self, extent: Extent) -> None:
        batch, _, queries, keys = self.distances.shape
        every_query = extent.seen_queries is None
        if batch not in (1, extent.batch) or keys != extent.keys or (every_query and queries != extent.queries):
            raise ShapeError(
                f"there are distances between {queries} queries and {keys} keys in {batch} sentences, but the call has "
                f"{extent.queries} queries and {extent.keys} keys in {extent.batch}"
            )


def _along_the_sentence(at: Places) -> Int[Tensor, "..."]:
    return at.key - at.place


def _table(max_distance: int, dim: int) -> nn.Parameter:
    """A vector for each distance, uniform as Glorot and Bengio (2010) would have it."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * max_distance + 1, dim)))
