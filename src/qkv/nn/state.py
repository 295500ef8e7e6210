"""States that decoders carry from token to token: frozen dataclasses of tensors, the batch first in each.

A state is a value: a step hands on the tensors that stay as they are, and makes new ones of the others. A tensor
without dimensions is one number for all rows, as a number would be.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

from qkv.types import Int, Tensor

T = TypeVar("T")


def select(state: T, rows: Int[Tensor, "rows"], *, but: Any = ()) -> T:
    """The state of the given rows of the batch, in that order; what is also a part of `but` stays as it is.

    A part that occurs twice is one part afterwards, too. So a beam search need not copy what the beams of a sentence
    share: `but` names the state that they began with, and what no step has replaced since is the same for them all.
    """
    return _select(state, rows, {id(part): part for part in _parts(but)})


def _select(value: Any, rows: Int[Tensor, "rows"], known: dict[int, Any]) -> Any:
    """`known` holds what became of each part that was met before."""
    if id(value) not in known:
        known[id(value)] = _selected(value, rows, known)
    return known[id(value)]


def _selected(value: Any, rows: Int[Tensor, "rows"], known: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, rows) if value.ndim else value
    if isinstance(value, tuple):
        return tuple(_select(item, rows, known) for item in value)
    if _has_fields(value):
        fields = {field.name: _select(getattr(value, field.name), rows, known) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def _parts(value: Any) -> Iterator[Any]:
    """A state and all that it is made of."""
    if isinstance(value, tuple):
        yield value
        for item in value:
            yield from _parts(item)
    elif _has_fields(value):
        yield value
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, Tensor):
        yield value


def _has_fields(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
