"""Gated convolutions over time and their embeddings (Dauphin et al. 2017; Gehring et al. 2017)."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Learned
from qkv.nn.fast import Dropout
from qkv.types import Bool, Float, Int, Tensor

ROOT_HALF = math.sqrt(0.5)


class PositionalEmbedding(nn.Embedding):
    """dropout(w + p): learned token and position embeddings."""

    def __init__(self, vocab_size: int, dim: int, max_length: int, dropout: float) -> None:
        super().__init__(vocab_size, dim)
        self.positions = Learned(max_length, dim)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)

    def forward(
        self, tokens: Int[Tensor, "batch length"], offset: int | Int[Tensor, "batch"] = 0
    ) -> Float[Tensor, "batch length dim"]:
        """Embed tokens at the positions from `offset` on, the same for all rows or one for each."""
        if isinstance(offset, Tensor):
            encoding = self.positions.at(offset[:, None] + torch.arange(tokens.shape[1], device=tokens.device))
        else:
            encoding = self.positions(tokens.shape[1], offset)
        return self.dropout(super().forward(tokens) + encoding)


class GatedConvolution(nn.Module):
    """h_t = A_t * sigmoid(B_t),   [A_t ; B_t] = W [x_t ; ... ; x_{t+k-1}] + b: a window of k inputs per output.

    There is no implicit padding: n + k - 1 inputs give n outputs, and the caller provides the context (`pad_same`, or
    the preceding inputs). The gate halves a zero-mean signal, so W is initialized with four times the
    variance-preserving variance, corrected for dropout: N(0, 4 (1 - dropout) / (k d)), as in the paper. Weight
    normalization is an option of the model: Adam's steps do not depend on the gradient scale.
    """

    def __init__(self, dim: int, kernel: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.kernel = kernel
        self.dropout = Dropout(dropout)
        self.linear = init_variance_preserving(nn.Linear(kernel * dim, 2 * dim), 4 * (1 - dropout))

    def forward(self, x: Float[Tensor, "batch inputs dim"]) -> Float[Tensor, "batch outputs dim"]:
        length = x.shape[1] - self.kernel + 1
        x = self.dropout(x)
        windows = torch.cat([x[:, first : first + length] for first in range(self.kernel)], dim=-1)
        return F.glu(self.linear(windows), dim=-1)  # one matrix product for all windows


def init_variance_preserving(linear: nn.Linear, gain: float = 1.0) -> nn.Linear:
    """Initialize W ~ N(0, gain / n), b = 0: the output variance is `gain` times the input variance."""
    nn.init.normal_(linear.weight, std=math.sqrt(gain / linear.in_features))
    nn.init.zeros_(linear.bias)
    return linear


def pad_same(
    x: Float[Tensor, "batch length dim"], kernel: int, valid: Bool[Tensor, "batch length"]
) -> Float[Tensor, "batch inputs dim"]:
    """Pad with zeros on both sides so that output t is centered on input t, and zero the inputs where `valid` is False.

    Zeroing the padding keeps the outputs of lower layers at padding positions from leaking into the sentence.
    """
    return F.pad(x.masked_fill(~valid[:, :, None], 0.0), (0, 0, (kernel - 1) // 2, kernel // 2))


def scale_gradient(x: Float[Tensor, "*shape"], factor: float) -> Float[Tensor, "*shape"]:
    """Return x unchanged; multiply its gradient by `factor`."""
    detached = x.detach()
    return detached + factor * (x - detached)


def scaled_residual(
    x: Float[Tensor, "batch length features"], y: Float[Tensor, "batch length features"]
) -> Float[Tensor, "batch length features"]:
    """x (+) y = (x + y) sqrt(1/2), which preserves variance, in the precision of x."""
    return (x + y.to(x.dtype)) * ROOT_HALF
