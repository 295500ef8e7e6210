"""Dropout with cheap random bits on CPU."""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.types import Float, Tensor

LEVELS = 2**16  # sixteen random bits per element: p is exact to 1 in 65,536


class Dropout(nn.Module):
    """Zero each element with probability p and scale the rest by 1 / (1 - p) in training (Srivastava et al. 2014)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropout(x: Float[Tensor, "*shape"], p: float) -> Float[Tensor, "*shape"]:
    """Zero each element with probability p and scale the rest by 1 / (1 - p)."""
    dropped = min(round(p * LEVELS), LEVELS - 1)
    if dropped == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    # PyTorch draws one double-precision number per element, which costs more than the dropout itself.
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    return (x * (LEVELS / (LEVELS - dropped))).masked_fill_(bits < dropped - LEVELS // 2, 0.0)
