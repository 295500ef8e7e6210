"""Positions of image patches: a penalty for the distance from a learned offset, in rows and columns."""

import copy
import math
from typing import final

import torch
from torch import nn

from qkv.attention.position import Bias, Position
from qkv.attention.precision import upcast_dtype
from qkv.attention.score import Sizes
from qkv.attention.score_shape import Index, Queries, ScoreShape
from qkv.config import PositiveFloat
from qkv.errors import InputError, ShapeError
from qkv.registry import register
from qkv.types import Float, Int, Tensor


@final
@register("position", "quadratic")
class Quadratic(nn.Module, Position):
    """Each head prefers the patches at an offset from the query (Cordonnier, Loukas and Jaggi 2020).

        score(i, j) -= sharpness_h |offset(i, j) - center_h|^2

    offset(i, j) is the difference between the positions of patches j and i, in rows and columns. The sharpness, a
    positive number per head, and the center, two numbers, are learned. With a great sharpness, each head selects the
    patch at its center, so that nine heads can compute any convolution with a kernel of 3 x 3 patches; with a sharpness
    near 0, only the content matters. The initial centers are 0 and the offsets nearest to it, a different one per head:
    attention starts local, which a vision Transformer otherwise has to learn from many images (d'Ascoli et al. 2021).

    Position 0 is that of the class token, and patches follow row by row. The class token has no offsets: nothing is
    subtracted from its scores, as a query or as a key.

    Args:
        heads: Number of heads.
        columns: Number of patches in a row.
        sharpness: Initial sharpness of all heads.
    """

    initial_options = ("sharpness",)
    adds_bias = True

    def __init__(self, heads: int, columns: int, sharpness: float = 1.0) -> None:
        super().__init__()
        if heads < 1 or columns < 1:
            raise InputError(f"Quadratic needs at least one head and one column, not {heads} and {columns}")
        if not sharpness > 0:
            raise InputError(f"sharpness must be positive, not {sharpness}")
        self.heads, self.columns, self.sharpness = heads, columns, sharpness
        self.log_sharpness = nn.Parameter(torch.full((heads,), math.log(sharpness)))  # keeps sharpness_h positive
        # Vectors, like biases: without weight decay, which would pull all heads to the query.
        self.center_row, self.center_column = map(nn.Parameter, _nearest_offsets(heads).unbind(dim=1))

    @classmethod
    def from_sizes(cls, sizes: Sizes, *, sharpness: PositiveFloat = 1.0) -> "Quadratic":  # initial sharpness
        if sizes.grid is None:
            raise InputError("quadratic positions are those of image patches, which only vit has")
        return cls(sizes.heads, sizes.grid[1], sharpness)

    def on_grid(self, columns: int) -> "Quadratic":
        """Return this term, with the same parameters, for images with another number of patches in a row."""
        if columns == self.columns:
            return self
        term = copy.copy(self)
        term.columns = columns
        return term

    def bias(self, query: Queries, shape: ScoreShape) -> Bias:
        if shape.head_subset is None and shape.heads != self.heads:
            raise ShapeError(f"Quadratic expects {self.heads} heads, not {shape.heads}")
        dtype = upcast_dtype(query.dtype)
        sharpness, rows, columns = (
            x.to(dtype) for x in (self.log_sharpness.exp(), self.center_row, self.center_column)
        )

        def at(index: Index) -> Float[Tensor, "..."]:
            (query_row, query_column), (key_row, key_column) = map(self._cell, (index.query_position, index.key))
            row = key_row - query_row - index.per_head(rows)
            column = key_column - query_column - index.per_head(columns)
            is_patch = (index.query_position > 0) & (index.key > 0)
            penalty = index.per_head(sharpness) * (row * row + column * column)
            return torch.where(is_patch, -penalty, 0.0).to(query.dtype)

        return at

    def _cell(self, position: Int[Tensor, "..."]) -> tuple[Int[Tensor, "..."], Int[Tensor, "..."]]:
        """Row and column of the patch at a position."""
        patch = position - 1
        return patch // self.columns, patch % self.columns


def _nearest_offsets(count: int) -> Float[Tensor, "count 2"]:
    """Return the offsets in rows and columns that are nearest to 0, beginning with 0 itself."""
    reach = range(-math.isqrt(count) - 1, math.isqrt(count) + 2)
    offsets = sorted(((row, column) for row in reach for column in reach), key=lambda o: (o[0] ** 2 + o[1] ** 2, o))
    return torch.tensor(offsets[:count], dtype=torch.get_default_dtype())
