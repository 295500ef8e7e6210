"""Causal convolutions over time whose reach doubles from layer to layer (van den Oord et al. 2016; Mishra et al. 2018).

What a layer finds is put behind what it was given, so that every later layer sees all of it.
"""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.errors import InputError
from qkv.nn.stack import Stack
from qkv.types import Float, Tensor


class DenseBlock(nn.Module):
    """[x_t ; tanh(f_t) * sigmoid(g_t)],   [f_t ; g_t] = W [x_{t-d} ; x_t] + b:   a kernel of two, d (dilation) apart.

    Before the first input there are zeros.
    """

    def __init__(self, features: int, dilation: int, filters: int) -> None:
        super().__init__()
        if dilation < 1:
            raise InputError(f"a convolution looks back by one place at least, not by {dilation}")
        self.dilation = dilation
        self.weigh = nn.Linear(2 * features, 2 * filters)  # W and b
        nn.init.xavier_uniform_(self.weigh.weight)
        nn.init.zeros_(self.weigh.bias)

    def forward(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch length wider"]:
        before = F.pad(x, (0, 0, self.dilation, 0))[:, : x.shape[1]]  # x_{t-d}
        f, g = self.weigh(torch.cat((before, x), dim=-1)).chunk(2, dim=-1)
        return torch.cat((x, torch.tanh(f) * torch.sigmoid(g)), dim=-1)


class TemporalConvolution(nn.Module):
    """Dense blocks with dilations 1, 2, 4, ...: as many as it takes for each place to see all before it, of `length`.

    The paper's listing begins with a dilation of two, and so would pass over every second place; its text asks for a
    reach that exceeds the length, which these have.
    """

    def __init__(self, features: int, length: int, filters: int) -> None:
        super().__init__()
        self.blocks = Stack(DenseBlock(features + n * filters, 2**n, filters) for n in range(reach_depth(length)))

    def forward(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch length wider"]:
        for block in self.blocks:
            x = block(x)
        return x


def reach_depth(length: int) -> int:
    """ceil(log2 length): how many doublings reach over so many places."""
    return (length - 1).bit_length()
