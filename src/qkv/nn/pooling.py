"""Pool the states of a text's tokens into one vector.

mean         1 / n sum_i h_i
last         [forward_n ; backward_1], with one direction forward_n     the final state of each direction
attention    sum_i a_i h_i,   a = softmax_i(q . tanh(W h_i + b))        q is learned (Yang et al. 2016)
"""

import torch
from torch import nn

from qkv.attention import Attend, Dot, Padding
from qkv.nn.rnn import last_states
from qkv.types import Bool, Float, Int, Shaped, Tensor


class Pooling(nn.Module):
    """Base class; `features` counts all directions, concatenated. `attend` has the terms of attention pooling."""

    def __init__(self, features: int, directions: int = 2, attend: Attend | None = None) -> None:
        super().__init__()
        self.directions = directions


class MeanPooling(Pooling):
    """Mean over the tokens."""

    def forward(
        self, hidden: Float[Tensor, "batch length features"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch features"]:
        return masked_mean(hidden, lengths)


class LastPooling(Pooling):
    """Final state of each direction."""

    def forward(
        self, hidden: Float[Tensor, "batch length features"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch features"]:
        return last_states(hidden, lengths, self.directions)


class AttentionPooling(Pooling):
    """Average weighted by attention with a learned query."""

    def __init__(self, features: int, directions: int = 2, attend: Attend | None = None) -> None:
        super().__init__(features, directions)
        self.key = nn.Linear(features, features)  # W and b
        self.query = nn.Parameter(torch.empty(features))  # q
        self.attend = attend or Attend(Dot(), heads=1)
        nn.init.uniform_(self.query, -(features**-0.5), features**-0.5)

    def forward(
        self, hidden: Float[Tensor, "batch length features"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch features"]:
        keys = self.key(hidden).tanh().to(hidden.dtype)[:, None]  # keep the precision of the values under autocast
        query = self.query.to(hidden.dtype).expand(len(hidden), 1, 1, -1)
        return self.attend(query, keys, hidden[:, None], Padding(lengths)).output[:, 0, 0]


POOLINGS: dict[str, type[Pooling]] = {"mean": MeanPooling, "last": LastPooling, "attention": AttentionPooling}


def masked_mean(x: Float[Tensor, "batch length dim"], lengths: Int[Tensor, "batch"]) -> Float[Tensor, "batch dim"]:
    """Return the mean over the tokens of each row, without padding; zeros if there is none."""
    valid = valid_positions(x, lengths)
    return x.masked_fill(~valid[..., None], 0.0).sum(dim=1) / lengths.clamp(min=1)[:, None]


def valid_positions(
    rows: Shaped[Tensor, "batch length *features"], lengths: Int[Tensor, "batch"]
) -> Bool[Tensor, "batch length"]:
    """Return True for tokens and False for padding."""
    return torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]


def full_lengths(rows: Shaped[Tensor, "batch length *features"]) -> Int[Tensor, "batch"]:
    """Return the lengths of rows without padding."""
    return torch.full(rows.shape[:1], rows.shape[1], device=rows.device)
