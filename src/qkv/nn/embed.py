"""Embeddings of tokens, and positions by name."""

import math
from collections.abc import Callable
from typing import final

import torch
from torch import nn

from qkv.attention import ALiBi, Encoding, Learned, Position, Relative, Rotary, Sinusoidal
from qkv.nn.dropout import Dropout
from qkv.types import Float, Int, Tensor

REACH = 16  # the distance beyond which relative positions are no longer told apart, as in Shaw et al. 2018


class ScaledEmbedding(nn.Embedding):
    """sqrt(d) * E[token]: the rows of E are as small as those of an output layer, and can be the same (`tie`)."""

    def __init__(self, size: int, dim: int, scale: float | None = None) -> None:
        super().__init__(size, dim)
        self.scale = math.sqrt(dim) if scale is None else scale
        nn.init.normal_(self.weight, std=dim**-0.5)

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        return super().forward(tokens) * self.scale


class PositionedEmbedding(nn.Module):
    """dropout(sqrt(d) * E[token] + PE[position]), as in Vaswani et al. 2017, section 3.4.

    Without positions they are left to the attention layers. What else is known of the tokens may be added, too.
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


@final
class SinusoidalHalves(Encoding):
    """The numbers of `Sinusoidal`, all sines first and then all cosines, as released Marian models have them."""

    extrapolates = True

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alternating = Sinusoidal(dim)

    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        return _sines_first(self.alternating(length, offset))

    def at(self, places: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length dim"]:
        return _sines_first(self.alternating.at(places))


def _sines_first(encoding: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape dim"]:
    return torch.cat((encoding[..., 0::2], encoding[..., 1::2]), dim=-1)


# Positions as a recipe names them: some are added to embeddings, made for a width and so many places, ...
ENCODINGS: dict[str, Callable[[int, int], Encoding]] = {
    "sinusoidal": lambda dim, places: Sinusoidal(dim),
    "sinusoidal_halves": lambda dim, places: SinusoidalHalves(dim),
    "learned": lambda dim, places: Learned(places, dim),
}

# ... and some act inside self-attention, made for a width and its heads.
POSITIONS: dict[str, Callable[[int, int], Position]] = {
    "rotary": lambda dim, heads: Rotary(dim // heads),
    "relative": lambda dim, heads: Relative(dim // heads, REACH),
    "alibi": lambda dim, heads: ALiBi(heads),
}
