"""Token embeddings with positions."""

import math

from torch import nn

from qkv.attention import Sinusoidal
from qkv.nn.dropout import Dropout
from qkv.types import Float, Int, Tensor


class ScaledEmbedding(nn.Embedding):
    """sqrt(d) * E[token]: the rows of E are as small as those of an output layer, and can be the same (`tie`)."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__(size, dim)
        nn.init.normal_(self.weight, std=dim**-0.5)

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        return super().forward(tokens) * math.sqrt(self.embedding_dim)


class PositionedEmbedding(nn.Module):
    """dropout(sqrt(d) * E[token] + PE[position]), as in Vaswani et al. 2017, section 3.4."""

    def __init__(self, size: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.tokens = ScaledEmbedding(size, dim)
        self.positions = Sinusoidal(dim)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Int[Tensor, "batch length"], offset: int = 0) -> Float[Tensor, "batch length dim"]:
        return self.dropout(self.tokens(tokens) + self.positions(tokens.shape[1], offset))
