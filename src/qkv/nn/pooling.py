"""One vector for a whole text, made of the states of its words.

mean         1 / n sum_i h_i
attention    sum_i a_i h_i,   a = softmax_i(q . tanh(W h_i + b))        q is learned (Yang et al. 2016)
"""

import torch
from torch import nn

from qkv.attention import Attend, Dot, Padding
from qkv.types import Float, Int, Tensor


class MeanPooling(nn.Module):
    """Every word counts the same."""

    def __init__(self, features: int) -> None:
        super().__init__()

    def forward(
        self, hidden: Float[Tensor, "batch length features"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch features"]:
        inside = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
        return hidden.masked_fill(~inside[..., None], 0.0).sum(dim=1) / lengths.clamp(min=1)[:, None]


class AttentionPooling(nn.Module):
    """Words count by what they are."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.key = nn.Linear(features, features)  # W and b
        self.query = nn.Parameter(torch.empty(features))  # q
        self.attend = Attend(Dot(), heads=1)
        nn.init.uniform_(self.query, -(features**-0.5), features**-0.5)

    def forward(
        self, hidden: Float[Tensor, "batch length features"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch features"]:
        keys = self.key(hidden).tanh().to(hidden.dtype)[:, None]  # autocast would make them shorter than the values
        query = self.query.to(hidden.dtype).expand(len(hidden), 1, 1, -1)
        return self.attend(query, keys, hidden[:, None], Padding(lengths)).output[:, 0, 0]


POOLINGS: dict[str, type[MeanPooling] | type[AttentionPooling]] = {"mean": MeanPooling, "attention": AttentionPooling}
