"""A word from its characters alone (Kim et al. 2016): convolutions, the most that each finds, highways, a projection.

x = P H(max_s relu(C * e_s))                          characters e, convolutions C
H(u) = g * relu(T u) + (1 - g) * u,   g = sigmoid(G u)                                 (Srivastava et al. 2015)

The most that is found is never below 0, and what all words have in common comes to outweigh how they differ, unless it
is normalised before H.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from qkv.data.characters import CHARACTERS, PADDING
from qkv.nn.stack import Stack
from qkv.types import Float, Int, Tensor

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class WordEncoder(nn.Module):
    """x, of each word; a filter has a width, and a number of features that it finds."""

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
        features = sum(found for _, found in filters)
        self.activation, self.normalise = ACTIVATIONS[activation], normalise
        self.embed = nn.Embedding(CHARACTERS, character_dim, padding_idx=PADDING)
        self.convolutions = Stack(nn.Conv1d(character_dim, found, width) for width, found in filters)
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
    """H: as much of what came in as a gate lets by, and for the rest something made of it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.transform = nn.Linear(features, features)  # T
        self.gate = nn.Linear(features, features)  # G
        nn.init.constant_(self.gate.bias, -2.0)  # at first nearly all goes by

    def forward(self, u: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        made = torch.relu(self.transform(u))
        return torch.lerp(u.to(made.dtype), made, torch.sigmoid(self.gate(u)))
