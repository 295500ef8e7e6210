"""Simple positional encodings, for comparison with sines: the index, the index divided by a length, one-hot vectors."""

from abc import abstractmethod
from typing import final

import torch
from torch.nn import functional as F

from qkv.attention.encoding import PositionalEncoding, check_offset
from qkv.attention.score import Sizes
from qkv.errors import InputError
from qkv.registry import register
from qkv.types import Float, Int, Tensor


class SimpleEncoding(PositionalEncoding):
    """A positional encoding without parameters, computed from the positions alone."""

    anchor: Float[Tensor, "0"]  # has the device and the dtype of the model

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("anchor", torch.empty(0), persistent=False)

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "SimpleEncoding":
        return cls(sizes.heads * sizes.query)

    def forward(self, length: int, offset: int = 0) -> Float[Tensor, "length dim"]:
        check_offset(offset)
        return self.at(torch.arange(offset, offset + length, device=self.anchor.device))

    def at(self, positions: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape dim"]:
        return self.encode(positions.to(self.anchor.device)).to(self.anchor.dtype)

    @abstractmethod
    def encode(self, positions: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape dim"]:
        """Return the vectors of positions."""


@final
@register("position", "index")
class IndexEncoding(SimpleEncoding):
    """PE(pos) = (pos, 0, ... 0): it grows without bound, and soon outweighs the embeddings it is added to.

    It is added to one feature: layer normalization would remove a number that is added to all of them.

    Args:
        dim: Features of the embeddings.
    """

    def encode(self, positions: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape dim"]:
        return F.pad(positions[..., None].float(), (0, self.dim - 1))


@final
@register("position", "index_fraction")
class IndexFraction(SimpleEncoding):
    """PE(pos) = (pos / max_length, 0, ... 0): bounded, but neighboring positions hardly differ.

    A text's own length, which is not known while it is decoded, would give one position different vectors in texts of
    different lengths.

    Args:
        dim: Features of the embeddings.
        max_length: Number that the positions are divided by.
    """

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__(dim)
        self.max_length = max_length

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "IndexFraction":
        return cls(sizes.heads * sizes.query, sizes.max_keys)

    def encode(self, positions: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape dim"]:
        return F.pad((positions / self.max_length)[..., None], (0, self.dim - 1))


@final
@register("position", "one_hot")
class OneHotEncoding(SimpleEncoding):
    """PE(pos)_i = 1 if i = pos else 0: every position needs a feature, so texts have at most `dim` tokens.

    Args:
        dim: Features of the embeddings.
    """

    def encode(self, positions: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape dim"]:
        if positions.numel() and positions.device.type == "cpu" and int(positions.max()) >= self.dim:
            raise InputError(
                f"position {int(positions.max())} is out of range: one-hot vectors of {self.dim} features have "
                f"{self.dim} positions, starting at 0. Shorten the input, raise dim or use another position"
            )
        return F.one_hot(positions, self.dim).float()
