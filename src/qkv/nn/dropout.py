"""Dropout whose draws cost little on a CPU."""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.types import Float, Tensor

LEVELS = 2**16  # sixteen bits decide about a number: shares are true to 1 in 65,536


class Dropout(nn.Module):
    """x / (1 - p), but 0 with probability p while training (Srivastava et al. 2014)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropout(x: Float[Tensor, "*shape"], p: float) -> Float[Tensor, "*shape"]:
    """x / (1 - p), but 0 with probability p."""
    lost = min(round(p * LEVELS), LEVELS - 1)
    if lost == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    # PyTorch draws a number in double precision for every element, which takes longer than what is done with it.
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    return (x * (LEVELS / (LEVELS - lost))).masked_fill_(bits < lost - LEVELS // 2, 0.0)
