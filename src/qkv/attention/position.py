"""Positions: where things are, told to the embeddings or to the scores."""

import math
from abc import ABC
from typing import final

import torch
from torch import nn

from qkv.types import Float, Tensor


class Position(nn.Module, ABC):
    """A position term inside the operator: it may turn queries and keys, or shift scores, by where they stand."""

    shifts_scores = True  # whether `shift` does anything: fused kernels cannot serve a position that does

    def turn(
        self, query: Float[Tensor, "batch heads query dim"], key: Float[Tensor, "batch heads key dim"]
    ) -> tuple[Float[Tensor, "batch heads query dim"], Float[Tensor, "batch heads key dim"]]:
        """Transform queries and keys before they are compared."""
        return query, key

    def shift(
        self, scores: Float[Tensor, "batch heads query key"], query: Float[Tensor, "batch heads query dim"]
    ) -> Float[Tensor, "batch heads query key"]:
        """Add to the scores what positions have to say."""
        return scores


@final
class Sinusoidal(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same), added to embeddings; works at any length."""

    table: Float[Tensor, "length dim"]

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("table", torch.empty(0, dim), persistent=False)

    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        """The encodings of positions offset ... offset + length - 1."""
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
