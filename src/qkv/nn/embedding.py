"""Token embeddings, and position encodings by name."""

import math
from collections.abc import Callable

from torch import nn

from qkv.attention import ALiBi, Encoding, Learned, Position, Relative, Rotary, Sinusoidal
from qkv.attention.encoding import SinusoidalHalves as SinusoidalHalves
from qkv.nn.fast import Dropout
from qkv.types import Float, Int, Tensor

MAX_RELATIVE_DISTANCE = 16  # relative positions are clipped to this distance, as in Shaw et al. 2018


class ScaledEmbedding(nn.Embedding):
    """sqrt(d) * E[token], with E initialised at the scale of an output layer, so that the two can be tied."""

    def __init__(self, size: int, dim: int, scale: float | None = None) -> None:
        super().__init__(size, dim)
        self.scale = math.sqrt(dim) if scale is None else scale
        nn.init.normal_(self.weight, std=dim**-0.5)

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        return super().forward(tokens) * self.scale


class PositionedEmbedding(nn.Module):
    """dropout(sqrt(d) * E[token] + PE[position]), as in Vaswani et al. 2017, section 3.4.

    Without `positions`, they are left to the attention layers. `added` is a further embedding per token.
    """

    def __init__(
        self, size: int, dim: int, dropout: float, *, positions: Encoding | None = None, scale: float | None = None
    ) -> None:
        super().__init__()
        self.tokens = ScaledEmbedding(size, dim, scale)
        self.positions = positions
        self.dropout = Dropout(dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        offset: int = 0,
        added: Float[Tensor, "batch length dim"] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        embedded = self.tokens(tokens)
        if self.positions is not None:
            embedded = embedded + self.positions(tokens.shape[1], offset)
        return self.dropout(embedded if added is None else embedded + added)


# Encodings that are added to embeddings, built from (dim, max_length).
ENCODINGS: dict[str, Callable[[int, int], Encoding]] = {
    "sinusoidal": lambda dim, max_length: Sinusoidal(dim),
    "sinusoidal_halves": lambda dim, max_length: SinusoidalHalves(dim),
    "learned": lambda dim, max_length: Learned(max_length, dim),
}

# Positions that act inside self-attention, built from (dim, heads).
POSITIONS: dict[str, Callable[[int, int], Position]] = {
    "rotary": lambda dim, heads: Rotary(dim // heads),
    "relative": lambda dim, heads: Relative(dim // heads, MAX_RELATIVE_DISTANCE),
    "alibi": lambda dim, heads: ALiBi(heads),
}
