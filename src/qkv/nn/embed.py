"""Token embeddings with positions."""

import math

from torch import nn

from qkv.attention import Sinusoidal
from qkv.types import Float, Int, Tensor


class PositionedEmbedding(nn.Module):
    """dropout(sqrt(d) * E[token] + PE[position]), as in Vaswani et al. 2017, section 3.4."""

    def __init__(self, size: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size, dim)
        self.positions = Sinusoidal(dim)
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(dim)
        nn.init.normal_(self.tokens.weight, std=dim**-0.5)

    def forward(self, tokens: Int[Tensor, "batch length"], offset: int = 0) -> Float[Tensor, "batch length dim"]:
        return self.dropout(self.tokens(tokens) * self.scale + self.positions(tokens.shape[1], offset))
