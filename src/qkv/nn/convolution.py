"""Convolutions over time, gated (Dauphin et al. 2017; Gehring et al. 2017)."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from qkv.errors import InputError, ShapeError
from qkv.nn.dropout import Dropout
from qkv.types import Bool, Float, Tensor

ROOT_HALF = math.sqrt(0.5)


class GatedConvolution(nn.Module):
    """h_t = A_t * sigmoid(B_t),   [A_t ; B_t] = W [x_t ; ... ; x_{t+k-1}] + b: each output reads k inputs in a row.

    It pads nothing: n + k - 1 inputs give n outputs, and whoever calls it says what stands before the first and after
    the last (`centred`, or the inputs that came before). The gate of a signal around zero halves it, so W begins with
    four times the variance that would keep it, less what dropout makes larger: N(0, 4 (1 - dropout) / (k d)). That is
    the paper's choice; the weight normalisation it adds for plain gradient descent is left out, since Adam's steps do
    not depend on the scale of a gradient.
    """

    def __init__(self, dim: int, kernel: int, dropout: float = 0.0) -> None:
        super().__init__()
        if kernel < 1:
            raise InputError(f"a convolution reads one input at least, not {kernel}")
        self.kernel = kernel
        self.dropout = Dropout(dropout)
        self.weigh = steady(nn.Linear(kernel * dim, 2 * dim), 4 * (1 - dropout))

    def forward(self, x: Float[Tensor, "batch inputs dim"]) -> Float[Tensor, "batch outputs dim"]:
        length = x.shape[1] - self.kernel + 1
        if length < 0:
            raise ShapeError(f"a convolution over {self.kernel} inputs was given {x.shape[1]}: pad them")
        x = self.dropout(x)
        windows = torch.cat([x[:, first : first + length] for first in range(self.kernel)], dim=-1)
        return F.glu(self.weigh(windows), dim=-1)  # one matrix product for all windows


def steady(linear: nn.Linear, gain: float = 1.0) -> nn.Linear:
    """A linear layer whose outputs begin with `gain` times the variance of its inputs: W ~ N(0, gain / n), b = 0."""
    nn.init.normal_(linear.weight, std=math.sqrt(gain / linear.in_features))
    nn.init.zeros_(linear.bias)
    return linear


def centred(
    x: Float[Tensor, "batch length dim"], kernel: int, seen: Bool[Tensor, "batch length"] | None
) -> Float[Tensor, "batch inputs dim"]:
    """Zeros on both sides, so that output t of a convolution reads around input t; and zeros where nothing is seen.

    Without the second a sentence would read, at its end, what the convolutions below have made of the padding.
    """
    if seen is not None:
        x = x.masked_fill(~seen[:, :, None], 0.0)
    return F.pad(x, (0, 0, (kernel - 1) // 2, kernel // 2))


def scaled_gradient(x: Float[Tensor, "*shape"], factor: float) -> Float[Tensor, "*shape"]:
    """x itself, to the last bit; the gradient that comes back through it is multiplied by the factor."""
    still = x.detach()
    return still + factor * (x - still)
