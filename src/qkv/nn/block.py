"""Transformer block: self-attention and a feed-forward network with residual connections."""

from torch import nn

from qkv.attention import Cache, Mask, Position
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multi_head import MultiHead
from qkv.types import Float, Tensor

NORMS = ("pre", "post")


class Block(nn.Module):
    """Self-attention and feed-forward sub-layers, each with a residual connection and layer normalisation.

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
        dim = feedforward.down_proj.out_features
        self.pre_norm = norm == "pre"
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
        """Return the block's output and the key/value cache for the next call."""
        attended, present = self.attention(
            self.attention_norm(x) if self.pre_norm else x, mask, past, position=position
        )
        x = x + self.dropout(attended)
        x = x if self.pre_norm else self.attention_norm(x)
        x = x + self.dropout(self.feedforward(self.feedforward_norm(x) if self.pre_norm else x))
        return x if self.pre_norm else self.feedforward_norm(x), present
