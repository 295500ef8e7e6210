"""Position terms of the operator: they rotate queries and keys, add a bias to the scores, or add to the output.

Encodings added to embeddings are in `qkv.attention.encoding`, learned relative positions in `qkv.attention.relative`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from qkv.attention.encoding import angles
from qkv.attention.precision import upcast_dtype
from qkv.attention.score import Sizes
from qkv.attention.score_shape import Index, Outputs, Queries, ScoreShape, Weights
from qkv.attention.term import AttentionTerm
from qkv.config import PositiveFloat
from qkv.errors import InputError, ShapeError
from qkv.registry import register
from qkv.types import Float, Int, Tensor

Bias = Callable[[Index], Float[Tensor, "..."]]


class Position(AttentionTerm):
    """Position term. A subclass sets the flags of what it does and overrides the corresponding methods."""

    rotates_qk = False  # transforms queries and keys before the score
    adds_bias = False  # adds a bias to the scores
    adds_to_output = False  # adds to the output
    gathers_bias = False  # gathers its bias from a table with one row per query

    def apply_to_qk(
        self, x: Float[Tensor, "batch heads length dim"], positions: Int[Tensor, "#batch length"]
    ) -> Float[Tensor, "batch heads length dim"]:
        """Transform queries or keys according to their positions."""
        return x

    def bias(self, query: Queries, shape: ScoreShape) -> Bias:
        """Return the bias as a function of the index; `query` is the output of `apply_to_qk`."""
        raise NotImplementedError(f"{type(self).__name__} adds nothing to the scores")

    def add_to_output(self, weights: Weights, shape: ScoreShape) -> Outputs:
        """Return the term to add to the output, given the attention weights."""
        raise NotImplementedError(f"{type(self).__name__} adds nothing to the output")


@final
@register("position", "none")
class NoPosition(Position):
    """No position: attention does not depend on the order of the keys."""


@final
@register("position", "rotary")
@dataclass(frozen=True)
class Rotary(Position):
    """Rotates each pair of features by an angle proportional to the position, so that q . k depends on distances only.

    (x_i, x_{i+d/2}) -> (x_i cos a - x_{i+d/2} sin a, x_i sin a + x_{i+d/2} cos a),   a = position * base^(-2i/d)

    (Su et al. 2021.) Feature i of the first half is paired with feature i of the second half, as in GPT-NeoX and Llama;
    the paper pairs neighbors, which is equivalent up to a permutation of the projected features. It is defined at any
    position, but models degrade soon beyond the length they were trained on (Press et al. 2022).

    Args:
        dim: Features of a head, an even number.
        base: Base of the angles; greater for longer contexts.
    """

    dim: int
    base: float = 10000.0

    rotates_qk = True

    def __post_init__(self) -> None:
        if self.dim < 2 or self.dim % 2:
            raise InputError(f"Rotary rotates pairs of features: dim must be even and positive, not {self.dim}")
        if not self.base > 0:
            raise InputError(f"the base of Rotary must be positive, not {self.base}")

    @classmethod
    def from_sizes(cls, sizes: Sizes, *, base: PositiveFloat = 10000.0) -> "Rotary":  # of the angles
        return cls(sizes.query, base)

    def apply_to_qk(
        self, x: Float[Tensor, "batch heads length dim"], positions: Int[Tensor, "#batch length"]
    ) -> Float[Tensor, "batch heads length dim"]:
        if x.shape[-1] != self.dim:
            raise ShapeError(f"Rotary expects heads of {self.dim} features, not {x.shape[-1]}")
        angle = angles(positions, self.dim, upcast_dtype(x.dtype), self.base)[:, None]  # b 1 l d/2
        cos, sin = angle.cos(), angle.sin()
        first, second = x.to(angle.dtype).chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


@final
@register("position", "alibi")
@dataclass(frozen=True)
class ALiBi(Position):
    """Subtracts m_h |i - j| from the score of a query at position i and a key at position j (Press et al. 2022).

    With n heads, n a power of two, head h has the slope m_h = 2^(-8h/n), h = 1 ... n: for 8 heads 1/2, 1/4 ... 1/256.
    Other numbers of heads take the slopes of the next lower power of two, then every second one of the next higher.
    Models trained with it keep their perplexity at several times the training length, by attending to nearby keys.

    Args:
        heads: Number of heads n.
    """

    heads: int

    adds_bias = True

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise InputError(f"ALiBi needs at least one head, not {self.heads}")

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "ALiBi":
        return cls(sizes.heads)

    def bias(self, query: Queries, shape: ScoreShape) -> Bias:
        if shape.head_subset is None and shape.heads != self.heads:
            raise ShapeError(f"ALiBi expects {self.heads} heads, not {shape.heads}")
        slopes = self.slopes(shape.device, upcast_dtype(query.dtype))
        return lambda index: -(index.per_head(slopes) * (index.query_position - index.key).abs()).to(query.dtype)

    def slopes(self, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "heads"]:
        """Slope m_h of each head, computed on the device to avoid a copy."""
        below = 2 ** (self.heads.bit_length() - 1)  # the power of two at or below the number of heads
        head = torch.arange(self.heads, device=device, dtype=dtype)
        return torch.exp2(torch.where(head < below, -8 / below * (head + 1), -4 / below * (2 * (head - below) + 1)))
