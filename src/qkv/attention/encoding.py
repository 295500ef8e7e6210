"""Positions that are added to embeddings: each place of a sequence has a vector of its own."""

import math
from abc import ABC, abstractmethod
from typing import final

import torch
from torch import nn

from qkv.errors import InputError
from qkv.types import Float, Tensor


class Encoding(nn.Module, ABC):
    """A vector for each place."""

    extrapolates: bool  # whether it is defined at places beyond those that it was trained on

    @abstractmethod
    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        """The vectors of places offset ... offset + length - 1."""


@final
class Sinusoidal(Encoding):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same), added to embeddings; works at any length."""

    extrapolates = True
    table: Float[Tensor, "length dim"]

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("table", torch.empty(0, dim), persistent=False)

    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        if offset + length > self.table.shape[0]:
            with torch.inference_mode(False):  # the table outlives this call, and may later meet a backward pass
                self.table = self._encode(max(offset + length, 2 * self.table.shape[0]))
        return self.table[offset : offset + length]

    def _encode(self, length: int) -> Float[Tensor, "length dim"]:
        position = torch.arange(length, device=self.table.device, dtype=torch.float64)
        even = torch.arange(0, self.dim, 2, device=self.table.device, dtype=torch.float64)
        angle = position[:, None] * torch.exp(even * (-math.log(10000.0) / self.dim))
        encoding = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, : self.dim]
        return encoding.to(self.table.dtype)


@final
class Learned(Encoding):
    """A weight vector for each place up to `max_length`; there is nothing beyond it."""

    extrapolates = False

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_length, dim).normal_(std=0.02))

    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        if offset + length > self.weight.shape[0]:
            raise InputError(
                f"place {offset + length - 1} has no position: {self.weight.shape[0]} were learned, numbered from 0. "
                "Shorten the input, or use positions that extrapolate"
            )
        return self.weight[offset : offset + length]
