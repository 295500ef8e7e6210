"""Token embeddings, and the position terms of a config."""

import math

from torch import nn

from qkv.attention import Position, PositionalEncoding, Sizes
from qkv.config import Term
from qkv.types import Float, Int, Tensor


class ScaledEmbedding(nn.Embedding):
    """sqrt(d) * E[token], with E ~ N(0, 1/d).

    A matrix that is tied to the readout needs the small scale of an output layer; the factor sqrt(d) restores unit
    variance where it is used as an embedding.
    """

    def __init__(self, size: int, dim: int, scale: float | None = None) -> None:
        super().__init__(size, dim)
        self.scale = math.sqrt(dim) if scale is None else scale
        nn.init.normal_(self.weight, std=dim**-0.5)

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        return super().forward(tokens) * self.scale


def is_encoding(term: Term) -> bool:
    """Return whether a position is added to the embeddings; otherwise it acts inside self-attention."""
    return issubclass(term.cls, PositionalEncoding)


def build_positional_encoding(term: Term, sizes: Sizes) -> PositionalEncoding | None:
    """Build a position that is added to the embeddings; None if the position acts inside self-attention."""
    return term.build(sizes) if is_encoding(term) else None


def build_attention_position(term: Term, sizes: Sizes) -> Position | None:
    """Build a position that acts inside self-attention; None if the position is added to the embeddings."""
    return None if is_encoding(term) else term.build(sizes)
