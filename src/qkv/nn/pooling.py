"""One vector for a whole text, made of the states of its words.

mean         1 / n sum_i h_i
last         [ahead_n ; back_1], of one direction ahead_n                what each direction knows when it has read all
attention    sum_i a_i h_i,   a = softmax_i(q . tanh(W h_i + b))        q is learned (Yang et al. 2016)
"""

import torch
from torch import nn

from qkv.attention import Attend, Dot, Padding
from qkv.types import Float, Int, Tensor


class Pooling(nn.Module):
    """Made for states of so many features, those of each direction of the reader side by side."""

    def __init__(self, features: int, directions: int = 2) -> None:
        super().__init__()
        self.features = features
        self.directions = directions


class MeanPooling(Pooling):
    """Every word counts the same."""

    def forward(
        self, hidden: Float[Tensor, "batch length features"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch features"]:
        inside = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
        return hidden.masked_fill(~inside[..., None], 0.0).sum(dim=1) / lengths.clamp(min=1)[:, None]


class LastPooling(Pooling):
    """What a reader was left with counts alone."""

    def forward(
        self, hidden: Float[Tensor, "batch length features"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch features"]:
        width = self.features // self.directions
        end = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, -1, width)
        ahead, back = hidden[..., :width].gather(1, end)[:, 0], hidden[:, 0, width:]
        return torch.cat((ahead, back), dim=-1).masked_fill(lengths[:, None] < 1, 0.0)


class AttentionPooling(Pooling):
    """Words count by what they are."""

    def __init__(self, features: int, directions: int = 2) -> None:
        super().__init__(features, directions)
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


POOLINGS: dict[str, type[Pooling]] = {"mean": MeanPooling, "last": LastPooling, "attention": AttentionPooling}
