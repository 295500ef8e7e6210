"""The position-wise network between attention layers."""

from torch import nn

from qkv.nn.dropout import Dropout
from qkv.types import Float, Tensor


class FeedForward(nn.Module):
    """W2 relu(W1 x), at every position alike (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(dim, hidden)
        self.narrow = nn.Linear(hidden, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
        return self.narrow(self.dropout(self.widen(x).relu()))
