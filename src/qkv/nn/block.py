"""The block that Transformers are stacks of."""

from torch import nn

from qkv.attention import Cache, Mask, Position
from qkv.nn.dropout import Dropout
from qkv.nn.feedforward import FeedForward
from qkv.nn.heads import MultiHead
from qkv.types import Float, Tensor

NORMS = ("pre", "post")


class Block(nn.Module):
    """Self-attention, then the feed-forward network, each added to what it has read, and layer normalisation.

    norm = "pre"     x = x + SelfAttention(norm(x)),   x = x + FeedForward(norm(x))     (Xiong et al. 2020)
    norm = "post"    x = norm(x + SelfAttention(x)),   x = norm(x + FeedForward(x))     (Vaswani et al. 2017)
    """

    def __init__(
        self,
        attention: MultiHead,
        feedforward: FeedForward,
        dropout: float = 0.0,
        *,
        norm: str = "pre",
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        dim = feedforward.narrow.out_features
        self.before = norm == "pre"
        self.attention = attention
        self.attention_norm = nn.LayerNorm(dim, eps)
        self.feedforward = feedforward
        self.feedforward_norm = nn.LayerNorm(dim, eps)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        mask: Mask | None = None,
        past: Cache | None = None,
        *,
        position: Position | None = None,
    ) -> tuple[Float[Tensor, "batch length dim"], Cache]:
        """The block's output, and the keys and values of all it has seen, for the next call."""
        read, present = self.attention(self.attention_norm(x) if self.before else x, mask, past, position=position)
        x = x + self.dropout(read)
        x = x if self.before else self.attention_norm(x)
        x = x + self.dropout(self.feedforward(self.feedforward_norm(x) if self.before else x))
        return x if self.before else self.feedforward_norm(x), present
