"""Positions that are added to embeddings: each place of a sequence has a vector of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import nn
from torch.nn import functional as F

from qkv.errors import InputError
from qkv.types import Float, Int, Tensor


class Encoding(nn.Module, ABC):
    """A vector for each place."""

    extrapolates: bool  # whether it is defined at places beyond those that it was trained on

    @abstractmethod
    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        """The vectors of places offset ... offset + length - 1."""

    @abstractmethod
    def at(self, places: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length dim"]:
        """The vectors of any places: one after another, or the depths of words in a tree (`qkv.attention.tree`)."""


@final
class Sinusoidal(Encoding):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same), added to embeddings (Vaswani et al. 2017).

    It is defined at any place; that a model reads places it never saw in training is another matter, and Press et al.
    (2022) found that it does so for a few dozen more at best.
    """

    extrapolates = True
    table: Float[Tensor, "length dim"]

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("table", torch.empty(0, dim), persistent=False)

    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        _check_offset(offset)
        if offset + length > self.table.shape[0]:
            with torch.inference_mode(False):  # the table outlives this call, and may later meet a backward pass
                known = max(offset + length, 2 * self.table.shape[0])
                self.table = self._encode(torch.arange(known, device=self.table.device))
        return self.table[offset : offset + length]

    def at(self, places: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length dim"]:
        return self._encode(places.to(self.table.device))

    def _apply(self, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> "Sinusoidal":
        super()._apply(convert, recurse)  # type: ignore[no-untyped-call]
        self.table = self.table[:0]  # what was rounded to another dtype does not come back: it is made anew
        return self

    def _encode(self, places: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape dim"]:
        angle = angles(places, self.dim, torch.float64)
        encoding = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., : self.dim]
        return encoding.to(self.table.dtype)


@final
class Learned(Encoding):
    """A weight vector for each place up to `max_length`; there is nothing beyond it."""

    extrapolates = False

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_length, dim).normal_(std=0.02))

    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        _check_offset(offset)
        if offset + length > self.weight.shape[0]:
            raise self._nothing_at(offset + length - 1)
        return self.weight[offset : offset + length]

    def at(self, places: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length dim"]:
        # On a GPU the lookup itself stops at a place that is not there: reading the places here would wait for it.
        if places.device.type == "cpu" and not torch.compiler.is_compiling():
            unknown = places[(places < 0) | (places >= self.weight.shape[0])]
            if len(unknown):
                raise self._nothing_at(int(unknown[0]))
        return F.embedding(places, self.weight)

    def _nothing_at(self, place: int) -> InputError:
        return InputError(
            f"place {place} has no position: {self.weight.shape[0]} were learned, numbered from 0. "
            "Shorten the input, or use positions that extrapolate"
        )


def _check_offset(offset: int) -> None:
    if offset < 0:
        raise InputError(f"places are numbered from 0 on: there is none at {offset}")


def angles(
    places: Int[Tensor, "*shape"], dim: int, dtype: torch.dtype, base: float = 10000.0
) -> Float[Tensor, "*shape half_dim"]:
    """place * base^(-2i/d), an angle for each pair of features: those of `Sinusoidal`, and those `Rotary` turns by."""
    even = torch.arange(0, dim, 2, device=places.device, dtype=dtype)
    return places[..., None].to(dtype) * base ** (-even / dim)
