"""Masks: which keys each query may attend to.

Masks are symbolic and combine with `&`, `|` and `~`. Each one defines `allows(index)` for a cell of the scores; a
backend turns that into a dense tensor, a block mask or a kernel flag as late as possible.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass, replace
from types import UnionType
from typing import final, overload

import torch

from qkv.attention.score_shape import CellIndex, Index, ScoreShape
from qkv.attention.term import AttentionTerm
from qkv.errors import InputError, ShapeError
from qkv.types import Bool, Int, Tensor


class Mask(AttentionTerm, ABC):
    """Defines which keys each query may attend to; the output of a fully masked query is zero.

    Masks are immutable: their tensors must not be modified, because results computed from them may be cached.
    """

    @abstractmethod
    def allows(self, index: Index) -> Bool[Tensor, "..."]:
        """Whether each of the cells may be attended to."""

    def fully_masked(
        self, shape: ScoreShape, allowed: Bool[Tensor, "#batch #heads #query #key"]
    ) -> Bool[Tensor, "#batch #heads #query 1"] | None:
        """Which queries have no allowed key; None if the mask guarantees that there are none."""
        return ~allowed.any(dim=-1, keepdim=True)

    def to_dense(self, shape: ScoreShape) -> Bool[Tensor, "#batch #heads #query #key"]:
        """Return the mask as a tensor that broadcasts to the scores, true where attention is allowed."""
        allowed = self.allows(CellIndex(shape))
        sizes = zip(allowed.shape, shape[:4], strict=False)
        wrong = [size for size, full in sizes if size != 1 and size != full]  # sizes may be symbolic: no `in`
        if allowed.ndim != 4 or wrong:
            raise ShapeError(
                f"the mask {type(self).__name__} has shape {list(allowed.shape)}, which does not broadcast to "
                f"scores of shape {list(shape[:4])} [batch, heads, query, key]"
            )
        return allowed

    def to(self, device: torch.device) -> "Mask":
        """Move the tensors of this mask to a device, as kernels (unlike `to_dense`) require."""
        if not is_dataclass(self):
            return self
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        moved = {name: x.to(device) for name, x in values if isinstance(x, Tensor | Mask)}
        return replace(self, **moved)

    def __and__(self, other: "AnyMask") -> "Mask":
        return Both(self, as_mask(other)) if isinstance(other, Mask | Tensor) else NotImplemented

    def __or__(self, other: "AnyMask") -> "Mask":
        return Either(self, as_mask(other)) if isinstance(other, Mask | Tensor) else NotImplemented

    def __invert__(self) -> "Mask":
        return Not(self)


@final
@dataclass(frozen=True)
class Causal(Mask):
    """A query attends to the keys up to its own position; by default the last query is aligned with the last key."""

    def allows(self, index: Index) -> Bool[Tensor, "..."]:
        return index.key <= index.query_position

    def fully_masked(
        self, shape: ScoreShape, allowed: Bool[Tensor, "#batch 1 query key"]
    ) -> Bool[Tensor, "#b 1 q 1"] | None:
        never = isinstance(shape.first_position, int) and shape.first_position >= 0
        return None if never else super().fully_masked(shape, allowed)


@final
@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Masks the keys beyond the length of each sequence: `Padding(torch.tensor([5, 3]))`.

    Args:
        lengths: Number of keys of each sequence without padding, an integer tensor [batch].
    """

    lengths: Int[Tensor, "batch"]

    def __post_init__(self) -> None:
        if not _is_integer(self.lengths, dims=1):
            raise ShapeError(
                "Padding takes the length of each sequence, as an integer tensor [batch]: Padding(torch.tensor([5, 3]))"
            )

    def allows(self, index: Index) -> Bool[Tensor, "..."]:
        return index.key < index.per_batch(self.lengths)

    def fully_masked(self, shape: ScoreShape, allowed: Bool[Tensor, "batch 1 1 key"]) -> Bool[Tensor, "batch 1 1 1"]:
        return self.lengths.to(shape.device).view(-1, 1, 1, 1) <= 0


@final
@dataclass(frozen=True)
class Window(Mask):
    """A query attends to `left` keys before its position, the key at it, and `right` keys after it.

    Args:
        left: Number of keys before the position of the query.
        right: Number of keys after the position of the query.
    """

    left: int
    right: int

    def __post_init__(self) -> None:
        if not all(isinstance(reach, int) and reach >= 0 for reach in (self.left, self.right)):
            raise InputError(f"Window takes two non-negative integers, not {self.left}, {self.right}")

    def allows(self, index: Index) -> Bool[Tensor, "..."]:
        return (index.key >= index.query_position - self.left) & (index.key <= index.query_position + self.right)


@final
@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Every query attends to the first `length` keys: `Causal() | Prefix(n)` is a prefix LM.

    Args:
        length: Number of keys, an integer for all sequences or an integer tensor [batch].
    """

    length: int | Int[Tensor, "batch"]

    def __post_init__(self) -> None:
        if isinstance(self.length, int) and self.length < 0:
            raise InputError(f"Prefix takes a non-negative number of keys, not {self.length}")
        if not isinstance(self.length, int) and not _is_integer(self.length, dims=1):
            raise ShapeError("Prefix takes an integer or an integer tensor [batch]")

    def allows(self, index: Index) -> Bool[Tensor, "..."]:
        return index.key < (self.length if isinstance(self.length, int) else index.per_batch(self.length))


@final
@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Several documents packed into one sequence: a query attends to the keys of its own document.

    Args:
        ids: Document id at each position, an integer tensor [batch, length].
    """

    ids: Int[Tensor, "batch length"]

    def __post_init__(self) -> None:
        if not _is_integer(self.ids, dims=2):
            raise ShapeError("Documents takes the document id at each position, as an integer tensor [batch, length]")

    def allows(self, index: Index) -> Bool[Tensor, "..."]:
        last = self.ids.shape[1] - 1
        document = index.per_position(self.ids, index.query_position.clamp(0, last))
        return (
            (document == index.per_position(self.ids, index.key))
            & (index.query_position >= 0)
            & (index.query_position <= last)
        )


@final
@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A mask given as a tensor.

    Args:
        allowed: Boolean tensor [batch, heads, query, key], true where attention is allowed; sizes of 1 are broadcast.
    """

    allowed: Bool[Tensor, "#batch #heads #query #key"]

    def __post_init__(self) -> None:
        if self.allowed.dtype != torch.bool:
            raise ShapeError(f"Dense takes a boolean tensor, not {self.allowed.dtype}")
        if self.allowed.ndim != 4:
            raise ShapeError(
                "Dense takes a tensor [batch, heads, query, key], with size 1 for broadcast dimensions, "
                f"but it has shape {list(self.allowed.shape)}"
            )

    def allows(self, index: Index) -> Bool[Tensor, "..."]:
        if isinstance(index, CellIndex):
            check_mask_shape(self.allowed.shape, index.shape)
        return index.per_cell(self.allowed)


@final
@dataclass(frozen=True)
class Both(Mask):
    """Intersection of two masks."""

    left: Mask
    right: Mask

    def allows(self, index: Index) -> Bool[Tensor, "..."]:
        return self.left.allows(index) & self.right.allows(index)

    def __repr__(self) -> str:
        return f"{_operand(self.left, Either)} & {_operand(self.right, Either | Both)}"


@final
@dataclass(frozen=True)
class Either(Mask):
    """Union of two masks."""

    left: Mask
    right: Mask

    def allows(self, index: Index) -> Bool[Tensor, "..."]:
        return self.left.allows(index) | self.right.allows(index)

    def __repr__(self) -> str:
        return f"{self.left!r} | {_operand(self.right, Either)}"


@final
@dataclass(frozen=True)
class Not(Mask):
    """Complement of a mask."""

    mask: Mask

    def allows(self, index: Index) -> Bool[Tensor, "..."]:
        return ~self.mask.allows(index)

    def __repr__(self) -> str:
        return f"~{_operand(self.mask, Both | Either)}"


def _operand(mask: Mask, weaker: type[Mask] | UnionType) -> str:
    """Return the repr of an operand, in parentheses if its operator binds more weakly."""
    return f"({mask!r})" if isinstance(mask, weaker) else repr(mask)


AnyMask = Mask | Bool[Tensor, "..."]  # a tensor [query, key] or [batch, heads, query, key]


@overload
def as_mask(mask: Tensor) -> Dense: ...


@overload
def as_mask(mask: Mask | Tensor) -> Mask: ...


def as_mask(mask: Mask | Tensor) -> Mask:
    """Return a mask; a boolean tensor is true where attention is allowed, as in `scaled_dot_product_attention`."""
    if not isinstance(mask, Tensor):
        return mask
    if mask.dtype != torch.bool or mask.ndim not in (2, 4):
        padding = mask.ndim == 2 and mask.dtype != torch.bool and not mask.is_floating_point()
        hint = ": for a padding mask [batch, key], pass mask.bool()[:, None, None, :]" if padding else ""
        if mask.is_floating_point():
            hint = ": for a mask of 0 and -inf, which is added to the scores, pass mask == 0"
        raise ShapeError(
            "a mask is a boolean tensor [query, key] or [batch, heads, query, key], true where attention is allowed, "
            f"but this one is {str(mask.dtype).removeprefix('torch.')} {list(mask.shape)}"
            f"{hint}"
        )
    return Dense(mask[None, None] if mask.ndim == 2 else mask)


def check_mask_shape(sizes: torch.Size, shape: ScoreShape) -> None:
    """Raise unless a mask of these sizes [batch, heads, query, key] broadcasts to the scores."""
    full = [shape.batch, shape.heads, shape.queries, shape.keys]
    if shape.head_subset is not None:
        full[1] = sizes[1]
    if shape.total_queries is not None:
        full[2] = shape.total_queries
    if not [None for size, whole in zip(sizes, full, strict=True) if size != 1 and size != whole]:
        return  # sizes may be symbolic: no `in`
    batch, heads, queries, keys = sizes
    two_dimensional = batch == heads == 1
    names, shown = ("[query, key]", full[2:]) if two_dimensional else ("[batch, heads, query, key]", full)
    padding = two_dimensional and queries == shape.batch and keys == shape.keys
    hint = ": for a padding mask [batch, key], pass mask[:, None, None, :] or Padding(lengths)" if padding else ""
    raise ShapeError(
        f"a mask of shape {list(sizes)[-len(shown) :]} does not broadcast to scores {names} of shape {shown}{hint}"
    )


def _is_integer(x: object, dims: int) -> bool:
    return isinstance(x, Tensor) and x.ndim == dims and x.dtype != torch.bool and not x.is_floating_point()
