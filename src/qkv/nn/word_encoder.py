"""Character CNN word encoder (Kim et al. 2016): convolutions, max pooling over time, highway layers, a projection.

x = P H(max_s relu(C * e_s))                          characters e, convolutions C
H(u) = g * relu(T u) + (1 - g) * u,   g = sigmoid(G u)                                 (Srivastava et al. 2015)

Max-pooled activations are never negative, so a component common to all words can outweigh their differences;
`normalise` adds layer normalisation before H.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from qkv.nn.stack import Stack
from qkv.tokenizers.characters import CHARACTERS, PADDING
from qkv.types import Float, Int, Tensor

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class WordEncoder(nn.Module):
    """Encode each word from its characters; `filters` are pairs of kernel width and number of features."""

    def __init__(
        self,
        dim: int,
        character_dim: int,
        filters: Sequence[tuple[int, int]],
        highway_layers: int,
        activation: str = "relu",
        *,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        features = sum(count for _, count in filters)
        self.activation, self.normalise = ACTIVATIONS[activation], normalise
        self.embed = nn.Embedding(CHARACTERS, character_dim, padding_idx=PADDING)
        self.convolutions = Stack(nn.Conv1d(character_dim, count, width) for width, count in filters)
        self.highways = Stack(Highway(features) for _ in range(highway_layers))
        self.project = nn.Linear(features, dim)  # P

    def forward(self, characters: Int[Tensor, "batch words characters"]) -> Float[Tensor, "batch words dim"]:
        e = self.embed(characters.flatten(0, 1)).transpose(1, 2)  # words dim characters
        u = torch.cat([self.activation(convolution(e).amax(dim=-1)) for convolution in self.convolutions], dim=-1)
        if self.normalise:
            u = F.layer_norm(u, u.shape[-1:])
        for highway in self.highways:
            u = highway(u)
        return self.project(u).unflatten(0, characters.shape[:2])


class Highway(nn.Module):
    """H(u): a gated mix of a transformed u and u itself."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.transform = nn.Linear(features, features)  # T
        self.gate = nn.Linear(features, features)  # G
        nn.init.constant_(self.gate.bias, -2.0)  # initially close to the identity

    def forward(self, u: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        transformed = torch.relu(self.transform(u))
        return torch.lerp(u.to(transformed.dtype), transformed, torch.sigmoid(self.gate(u)))
