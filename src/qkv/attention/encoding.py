"""Positional encodings that are added to embeddings: one vector per position."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.score import Sizes
from qkv.attention.term import AttentionTerm
from qkv.config import PositiveFloat
from qkv.errors import InputError
from qkv.registry import register
from qkv.types import Float, Int, Tensor


class PositionalEncoding(AttentionTerm, nn.Module, ABC):
    """Positional encoding: one vector per position."""

    scales_embeddings = False  # whether `add_to` multiplies embeddings by sqrt(dim), to match the scale of the encoding

    @abstractmethod
    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        """Return the vectors of positions offset ... offset + length - 1.

        Args:
            length: Number of positions.
            offset: The first position.

        Returns:
            A tensor [length, dim].
        """

    @abstractmethod
    def at(self, positions: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length dim"]:
        """Return the vectors of arbitrary positions, e.g. the depths of words in a tree (`qkv.attention.tree`)."""

    def add_to(
        self, x: Float[Tensor, "batch length dim"], positions: int | Int[Tensor, "batch length"] = 0
    ) -> Float[Tensor, "batch length dim"]:
        """Add the vectors of `positions`, or of consecutive positions from `positions` on, to embeddings."""
        encoding = self(x.shape[1], positions) if isinstance(positions, int) else self.at(positions)
        return (x * math.sqrt(x.shape[-1]) if self.scales_embeddings else x) + encoding


@register("position", "sinusoidal")
class Sinusoidal(PositionalEncoding):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same), added to embeddings (Vaswani et al. 2017).

    It is defined at any position, but Press et al. (2022) found that models extrapolate by a few dozen positions at
    best.

    Args:
        dim: Features of the embeddings.
    """

    scales_embeddings = True
    alternating = True  # sine and cosine of each angle side by side
    table: Float[Tensor, "length dim"]

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("table", torch.empty(0, dim), persistent=False)

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "Sinusoidal":
        return cls(sizes.heads * sizes.query)

    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        check_offset(offset)
        if offset + length > self.table.shape[0]:
            with torch.inference_mode(False):  # the table outlives this call and may be used in a backward pass later
                size = max(offset + length, 2 * self.table.shape[0])
                self.table = self._encode(torch.arange(size, device=self.table.device))
        return self.table[offset : offset + length]

    def at(self, positions: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length dim"]:
        return self._encode(positions.to(self.table.device))

    def _apply(self, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> "Sinusoidal":
        super()._apply(convert, recurse)  # type: ignore[no-untyped-call]
        self.table = self.table[:0]  # recompute it instead of casting, which would round it
        return self

    def _encode(self, positions: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape dim"]:
        angle = angles(positions, self.dim, torch.float64)
        parts = (angle.sin(), angle.cos())
        encoding = torch.stack(parts, dim=-1).flatten(-2) if self.alternating else torch.cat(parts, dim=-1)
        return encoding[..., : self.dim].to(self.table.dtype)


@final
@register("position", "sinusoidal_halves")
class SinusoidalHalves(Sinusoidal):
    """`Sinusoidal` with all sines first and then all cosines, as in released Marian models."""

    alternating = False


@final
@register("position", "learned")
class Learned(PositionalEncoding):
    """A learned vector for each position below `max_length`.

    Args:
        max_length: Number of positions.
        dim: Features of the embeddings.
        std: Standard deviation of the initial vectors; small ones are learned slowly if the embeddings are large.
    """

    initial_options = ("std",)
    position_axis = 0  # axis of the weight that has one slice per position

    def __init__(self, max_length: int, dim: int, std: float = 0.02) -> None:
        super().__init__()
        if not 0 < std < math.inf:
            raise InputError(f"std must be positive and finite, not {std}")
        self.max_length, self.dim, self.std = max_length, dim, std
        self.weight = nn.Parameter(torch.empty(max_length, dim).normal_(std=std))

    @classmethod
    def from_sizes(cls, sizes: Sizes, *, std: PositiveFloat = 0.02) -> "Learned":  # of the initial vectors
        return cls(sizes.max_keys, sizes.heads * sizes.query, std)

    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        check_offset(offset)
        if offset + length > self.weight.shape[0]:
            raise self._out_of_range(offset + length - 1)
        return self.weight[offset : offset + length]

    def at(self, positions: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length dim"]:
        # On a GPU the lookup itself fails for invalid positions; checking them here would synchronize.
        if positions.device.type == "cpu" and not torch.compiler.is_compiling():
            invalid = positions[(positions < 0) | (positions >= self.weight.shape[0])]
            if len(invalid):
                raise self._out_of_range(int(invalid[0]))
        return F.embedding(positions, self.weight)

    def _out_of_range(self, position: int) -> InputError:
        return InputError(
            f"position {position} is out of range: there are {self.weight.shape[0]} learned positions, starting at 0. "
            "Shorten the input or use an encoding that extrapolates"
        )


def check_offset(offset: int) -> None:
    if offset < 0:
        raise InputError(f"offset must not be negative, but it is {offset}")


def angles(
    positions: Int[Tensor, "*shape"], dim: int, dtype: torch.dtype, base: float = 10000.0
) -> Float[Tensor, "*shape half_dim"]:
    """position * base^(-2i/d), an angle for each pair of features, as used by `Sinusoidal` and `Rotary`."""
    even = torch.arange(0, dim, 2, device=positions.device, dtype=dtype)
    return positions[..., None].to(dtype) * base ** (-even / dim)
