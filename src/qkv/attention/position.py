"""Positions inside the operator: terms that turn queries and keys, shift scores, or add to what is read.

Positions that are added to embeddings are in `qkv.attention.encoding`, those that learn a vector for each distance in
`qkv.attention.relative`.
"""

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from qkv.attention.encoding import angles
from qkv.attention.extent import Extent, Places
from qkv.attention.precision import exact
from qkv.errors import InputError, ShapeError
from qkv.types import Float, Int, Tensor

Bias = Callable[[Places], Float[Tensor, "..."]]


class Position(ABC):
    """What the places of queries and keys have to say. A term overrides what it does, and says that it does."""

    turns = False  # queries and keys before they are compared
    biases = False  # adds to the scores
    reads = False  # adds to what is read
    looks_up = False  # what it adds to the scores stands in a table, with a row for each query
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


@final
@dataclass(frozen=True)
class Rotary(Position):
    """Turns each pair of features by an angle that grows with the place, so that only distances are left in q . k.

    (x_i, x_{i+d/2}) -> (x_i cos a - x_{i+d/2} sin a, x_i sin a + x_{i+d/2} cos a),   a = place * base^(-2i/d)

    (Su et al. 2021.) A pair is a feature of the first half and its fellow of the second, as in GPT-NeoX and Llama; the
    paper pairs neighbours, which is the same up to the order in which the projections write their features. It is
    defined at any place, but models soon read worse beyond the length they were trained on (Press et al. 2022).
    """

    dim: int
    base: float = 10000.0

    turns = True
    extrapolates = True

    def __post_init__(self) -> None:
        if self.dim < 2 or self.dim % 2:
            raise InputError(f"Rotary turns pairs of features: dim must be even and positive, not {self.dim}")
        if not self.base > 0:
            raise InputError(f"the base of Rotary must be positive, not {self.base}")

    def turn(
        self, x: Float[Tensor, "batch heads length dim"], places: Int[Tensor, "#batch length"]
    ) -> Float[Tensor, "batch heads length dim"]:
        if x.shape[-1] != self.dim:
            raise ShapeError(f"Rotary was made for heads of {self.dim} features, but they have {x.shape[-1]}")
        angle = angles(places, self.dim, exact(x.dtype), self.base)[:, None]  # b 1 l d/2
        cos, sin = angle.cos(), angle.sin()
        first, second = x.to(angle.dtype).chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


@final
@dataclass(frozen=True)
class ALiBi(Position):
    """Takes m_h |i - j| off the score of a query at place i and a key at place j (Press, Smith and Lewis 2022).

    Of n heads, n a power of two, the h-th has the slope m_h = 2^(-8h/n), h = 1 ... n: for 8 heads 1/2, 1/4 ... 1/256.
    Other numbers of heads take the slopes of the power of two below, then every second one of the power above. Models
    trained with it kept their perplexity at several times the training length; they do so by looking nearby.
    """

    heads: int

    biases = True
    extrapolates = True

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise InputError(f"ALiBi has a slope for each head: there must be at least one, not {self.heads}")

    def bias(self, query: Float[Tensor, "batch heads query dim"], extent: Extent) -> Bias:
        if extent.seen_heads is None and extent.heads != self.heads:
            raise ShapeError(f"ALiBi was made for {self.heads} heads, but there are {extent.heads}")
        slopes = self.slopes(extent.device, exact(query.dtype))
        return lambda at: -(at.of_head(slopes) * (at.place - at.key).abs()).to(query.dtype)

    def slopes(self, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "heads"]:
        """m_h of each head, computed where it is needed: nothing has to be moved there."""
        below = 2 ** (self.heads.bit_length() - 1)  # the power of two at or below the number of heads
        head = torch.arange(self.heads, device=device, dtype=dtype)
        return torch.exp2(torch.where(head < below, -8 / below * (head + 1), -4 / below * (2 * (head - below) + 1)))
