"""Masks: which key each query may attend to.

A mask is a symbolic value, combined with `&`, `|` and `~`; it becomes a tensor as late as possible, or a kernel's
flag and no tensor at all.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, final

import torch

from qkv.errors import ShapeError
from qkv.types import Bool, Int, Tensor


class Extent(NamedTuple):
    """How far a mask reaches: the sizes of the scores it will meet."""

    batch: int
    heads: int
    queries: int
    keys: int
    device: torch.device


class Mask(ABC):
    """Says which key each query may attend to; a query that may attend to nothing reads zeros."""

    @abstractmethod
    def materialise(self, extent: Extent) -> Bool[Tensor, "#batch #heads #query #key"]:
        """The mask as a tensor that broadcasts to the scores, true where attention is allowed."""

    def __and__(self, other: "Mask") -> "Mask":
        return Both(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return Either(self, other)

    def __invert__(self) -> "Mask":
        return Not(self)


@final
@dataclass(frozen=True)
class Causal(Mask):
    """A query sees the keys up to its own position; the last query stands at the last key."""

    def materialise(self, extent: Extent) -> Bool[Tensor, "1 1 query key"]:
        key = torch.arange(extent.keys, device=extent.device)
        query = torch.arange(extent.queries, device=extent.device) + (extent.keys - extent.queries)
        return (key <= query[:, None])[None, None]


@final
@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Each sequence of the batch has its own length; keys beyond it are not seen."""

    lengths: Int[Tensor, "batch"]

    def __post_init__(self) -> None:
        if not isinstance(self.lengths, Tensor) or self.lengths.ndim != 1 or self.lengths.is_floating_point():
            raise ShapeError("Padding takes the length of each sequence, as a tensor of whole numbers [batch]")

    def materialise(self, extent: Extent) -> Bool[Tensor, "batch 1 1 key"]:
        key = torch.arange(extent.keys, device=extent.device)
        return (key < self.lengths.to(extent.device)[:, None])[:, None, None]


@final
@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A mask given as a tensor, true where attention is allowed."""

    allowed: Bool[Tensor, "#batch #heads #query #key"]

    def __post_init__(self) -> None:
        if self.allowed.dtype != torch.bool:
            raise ShapeError(f"Dense takes a tensor of true and false, not one of {self.allowed.dtype}")

    def materialise(self, extent: Extent) -> Bool[Tensor, "#batch #heads #query #key"]:
        return self.allowed


@final
@dataclass(frozen=True)
class Both(Mask):
    """Allowed by the one mask and by the other."""

    left: Mask
    right: Mask

    def materialise(self, extent: Extent) -> Bool[Tensor, "#batch #heads #query #key"]:
        return self.left.materialise(extent) & self.right.materialise(extent)


@final
@dataclass(frozen=True)
class Either(Mask):
    """Allowed by the one mask or by the other."""

    left: Mask
    right: Mask

    def materialise(self, extent: Extent) -> Bool[Tensor, "#batch #heads #query #key"]:
        return self.left.materialise(extent) | self.right.materialise(extent)


@final
@dataclass(frozen=True)
class Not(Mask):
    """Allowed where the mask forbids."""

    mask: Mask

    def materialise(self, extent: Extent) -> Bool[Tensor, "#batch #heads #query #key"]:
        return ~self.mask.materialise(extent)
