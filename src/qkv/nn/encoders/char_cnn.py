"""Vectors of words from their characters: a character CNN (Kim et al. 2016), and hash embeddings."""

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import nn
from torch.nn import functional as F

from qkv.nn import fast
from qkv.types import Float, Int, Tensor

PADDING = 0  # every character of a padding word
CHARACTERS = 262  # number of character ids: padding, 256 bytes and 5 markers
ROWS = 2**16  # of a hash embedding
PRIME = 1099511628211  # p of the hash, from FNV


class CharCNN(nn.Module):
    """x = P H(max_k relu(conv(e))_k): the vector of a word from its characters e (Kim et al. 2016).

    Max-pooled activations are never negative, so a component common to all words can outweigh their differences;
    `normalize` adds layer normalization before H. `filters` are pairs of kernel width and number of features.
    """

    def __init__(
        self,
        dim: int,
        character_dim: int,
        filters: Sequence[tuple[int, ...]],
        highway_layers: int,
        activation: Literal["relu", "tanh"] = "relu",
        *,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        features = sum(count for _, count in filters)
        self.activation = torch.relu if activation == "relu" else torch.tanh
        self.normalize = normalize
        self.embed = nn.Embedding(CHARACTERS, character_dim, padding_idx=PADDING)  # e
        self.convolutions = nn.ModuleList(nn.Conv1d(character_dim, count, width) for width, count in filters)
        self.highways = nn.ModuleList(Highway(features) for _ in range(highway_layers))
        self.project = nn.Linear(features, dim)  # P

    def forward(self, characters: Int[Tensor, "batch words characters"]) -> Float[Tensor, "batch words dim"]:
        e = self.embed(characters.flatten(0, 1))
        u = self.activation(
            fast.max_convolutions(e, [cast(nn.Conv1d, convolution) for convolution in self.convolutions])
        )
        if self.normalize:
            u = F.layer_norm(u, u.shape[-1:])
        for highway in self.highways:
            u = highway(u)
        return self.project(u).unflatten(0, characters.shape[:2])


class Highway(nn.Module):
    """H(u) = m * relu(T u) + (1 - m) * u,   m = sigmoid(G u), with biases."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.transform = nn.Linear(features, features)  # T
        self.gate = nn.Linear(features, features)  # G
        nn.init.constant_(self.gate.bias, -2.0)  # initially close to the identity

    def forward(self, u: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        transformed = torch.relu(self.transform(u))
        return torch.lerp(u.to(transformed.dtype), transformed, torch.sigmoid(self.gate(u)))


class HashEmbedding(nn.Module):
    """v = E[(h xor h / 2^32) mod 2^16],   h = sum_i c_i p^i,   i = 1 ..        in 64-bit arithmetic with overflow.

    Needs no vocabulary; some words share a row by collision (Weinberger et al. 2009).
    """

    powers: Tensor

    def __init__(self, max_characters: int, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, features)  # E
        nn.init.normal_(self.table.weight, std=0.1)
        self.register_buffer("powers", torch.full((max_characters,), PRIME).cumprod(0), persistent=False)

    def forward(self, characters: Int[Tensor, "*words characters"]) -> Float[Tensor, "*words features"]:
        hashes = (characters * self.powers).sum(dim=-1)
        return self.table((hashes ^ (hashes >> 32)) % ROWS)
