"""Masks: which key each query may attend to.

A mask is a symbolic value, combined with `&`, `|` and `~`. It says of a cell of the scores whether it is allowed
(`allows`), and from that one sentence becomes, as late as possible, whatever a backend wants: a tensor, a block mask,
or a kernel's flag and no tensor at all.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import NamedTuple, final

import torch

from qkv.attention.extent import Cells, Extent, Places
from qkv.errors import InputError, ShapeError
from qkv.types import Bool, Int, Tensor


class Mask(ABC):
    """Says which key each query may attend to; a query that may attend to nothing reads zeros.

    It is a value: the tensors it holds are not to be changed, for what was made of them may be kept.
    """

    @abstractmethod
    def allows(self, at: Places) -> Bool[Tensor, "..."]:
        """Whether attention is allowed, at each of the cells."""

    def empty(
        self, extent: Extent, allowed: Bool[Tensor, "#batch #heads #query #key"]
    ) -> Bool[Tensor, "#batch #heads #query 1"] | None:
        """Which queries may attend to nothing; None where the mask knows that each sees something."""
        return ~allowed.any(dim=-1, keepdim=True)

    def materialise(self, extent: Extent) -> Bool[Tensor, "#batch #heads #query #key"]:
        """The mask as a tensor that broadcasts to the scores, true where attention is allowed."""
        allowed = self.allows(Cells(extent))
        if not broadcasts(allowed.shape, extent):
            raise ShapeError(
                f"the mask {type(self).__name__} has shape {list(allowed.shape)}, which does not broadcast to "
                f"scores of shape {list(extent[:4])} [batch, heads, query, key]"
            )
        return allowed

    def on(self, device: torch.device) -> "Mask":
        """This mask with the tensors it holds on a device; kernels, unlike `materialise`, need them there."""
        if not is_dataclass(self):
            return self
        held = ((field.name, getattr(self, field.name)) for field in fields(self))
        moved = {name: x.to(device) if isinstance(x, Tensor) else x.on(device) for name, x in held if _movable(x)}
        return replace(self, **moved)

    def visible(self, extent: Extent) -> "Visible":
        """The mask as a tensor, for one call."""
        return Visible(self, extent, self.materialise(extent))

    def __and__(self, other: "Mask") -> "Mask":
        return Both(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: "Mask") -> "Mask":
        return Either(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> "Mask":
        return Not(self)


@final
@dataclass(frozen=True)
class Causal(Mask):
    """A query sees the keys up to its own place; unless told otherwise, the last query stands at the last key."""

    def allows(self, at: Places) -> Bool[Tensor, "..."]:
        return at.key <= at.place

    def empty(self, extent: Extent, allowed: Bool[Tensor, "#batch 1 query key"]) -> Bool[Tensor, "#b 1 q 1"] | None:
        known = isinstance(extent.first_place, int) and extent.first_place >= 0
        return None if known else super().empty(extent, allowed)


@final
@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Each sequence of the batch has its own length; keys beyond it are not seen."""

    lengths: Int[Tensor, "batch"]

    def __post_init__(self) -> None:
        if not _whole_numbers(self.lengths, dims=1):
            raise ShapeError("Padding takes the length of each sequence, as a tensor of whole numbers [batch]")

    def allows(self, at: Places) -> Bool[Tensor, "..."]:
        return at.key < at.of_batch(self.lengths)

    def empty(self, extent: Extent, allowed: Bool[Tensor, "batch 1 1 key"]) -> Bool[Tensor, "batch 1 1 1"]:
        return self.lengths.to(extent.device).view(-1, 1, 1, 1) <= 0


@final
@dataclass(frozen=True)
class Window(Mask):
    """A query sees so many keys to the left of its place, so many to the right, and the one at it."""

    left: int
    right: int

    def __post_init__(self) -> None:
        if not all(isinstance(reach, int) and reach >= 0 for reach in (self.left, self.right)):
            raise InputError(f"Window takes two numbers of keys, whole and not negative, not {self.left}, {self.right}")

    def allows(self, at: Places) -> Bool[Tensor, "..."]:
        return (at.key >= at.place - self.left) & (at.key <= at.place + self.right)


@final
@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Every query sees the first keys, so many for all or for each sequence: `Causal() | Prefix(n)` is a prefix LM."""

    length: int | Int[Tensor, "batch"]

    def __post_init__(self) -> None:
        if isinstance(self.length, int) and self.length < 0:
            raise InputError(f"Prefix takes a number of keys, not {self.length}")
        if not isinstance(self.length, int) and not _whole_numbers(self.length, dims=1):
            raise ShapeError("Prefix takes a number, or a tensor of whole numbers [batch]")

    def allows(self, at: Places) -> Bool[Tensor, "..."]:
        return at.key < (self.length if isinstance(self.length, int) else at.of_batch(self.length))


@final
@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Several documents packed into one sequence: a query sees the keys of its own document."""

    ids: Int[Tensor, "batch length"]  # which document stands at each place

    def __post_init__(self) -> None:
        if not _whole_numbers(self.ids, dims=2):
            raise ShapeError("Documents takes the document at each place, as a tensor of whole numbers [batch, length]")

    def allows(self, at: Places) -> Bool[Tensor, "..."]:
        last = self.ids.shape[1] - 1
        document = at.of_place(self.ids, at.place.clamp(0, last))
        return (document == at.of_place(self.ids, at.key)) & (at.place >= 0) & (at.place <= last)


@final
@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A mask given as a tensor, true where attention is allowed."""

    allowed: Bool[Tensor, "#batch #heads #query #key"]

    def __post_init__(self) -> None:
        if self.allowed.dtype != torch.bool:
            raise ShapeError(f"Dense takes a tensor of true and false, not one of {self.allowed.dtype}")
        if self.allowed.ndim != 4:
            raise ShapeError(
                "Dense takes a tensor [batch, heads, query, key], with a 1 for what does not matter, "
                f"but it has shape {list(self.allowed.shape)}"
            )

    def allows(self, at: Places) -> Bool[Tensor, "..."]:
        return at.of_cell(self.allowed)


@final
@dataclass(frozen=True)
class Both(Mask):
    """Allowed by the one mask and by the other."""

    left: Mask
    right: Mask

    def allows(self, at: Places) -> Bool[Tensor, "..."]:
        return self.left.allows(at) & self.right.allows(at)


@final
@dataclass(frozen=True)
class Either(Mask):
    """Allowed by the one mask or by the other."""

    left: Mask
    right: Mask

    def allows(self, at: Places) -> Bool[Tensor, "..."]:
        return self.left.allows(at) | self.right.allows(at)


@final
@dataclass(frozen=True)
class Not(Mask):
    """Allowed where the mask forbids."""

    mask: Mask

    def allows(self, at: Places) -> Bool[Tensor, "..."]:
        return ~self.mask.allows(at)


def _movable(x: object) -> bool:
    return isinstance(x, Tensor | Mask)


def _whole_numbers(x: object, dims: int) -> bool:
    return isinstance(x, Tensor) and x.ndim == dims and x.dtype != torch.bool and not x.is_floating_point()


def broadcasts(shape: torch.Size, extent: Extent) -> bool:
    """Whether a tensor of this shape broadcasts to the scores."""
    if len(shape) != 4:
        return False
    batch, heads, queries, keys = shape
    return (
        (batch == 1 or batch == extent.batch)
        and (heads == 1 or heads == extent.heads)
        and (queries == 1 or queries == extent.queries)
        and (keys == 1 or keys == extent.keys)
    )


class Visible(NamedTuple):
    """A mask as it applies to one call."""

    mask: Mask
    extent: Extent
    allowed: Bool[Tensor, "#batch #heads #query #key"]

    @property
    def empty(self) -> Bool[Tensor, "#batch #heads #query 1"] | None:
        """Which queries may attend to nothing; None where there is no such query."""
        return self.mask.empty(self.extent, self.allowed)
