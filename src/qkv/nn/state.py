"""Decoder states: frozen dataclasses of tensors, the batch first in each.

States are immutable: a step reuses the tensors that do not change and creates new ones for the rest. A tensor without
dimensions holds one number for all rows.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

from qkv.types import Int, Tensor

T = TypeVar("T")


def select(state: T, rows: Int[Tensor, "rows"], *, shared: Any = ()) -> T:
    """Return the given rows of a state, in that order; parts that also occur in `shared` are kept as they are.

    A part that occurs twice is selected once. In beam search, `shared` is the initial state: whatever no step has
    replaced since is the same for all beams of a sentence and need not be copied.
    """
    return _select(state, rows, {id(part): part for part in _parts(shared)})


def _select(value: Any, rows: Int[Tensor, "rows"], selected: dict[int, Any]) -> Any:
    """Select rows; `selected` caches the result for each part by id."""
    if id(value) not in selected:
        selected[id(value)] = _select_new(value, rows, selected)
    return selected[id(value)]


def _select_new(value: Any, rows: Int[Tensor, "rows"], selected: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, rows) if value.ndim else value
    if isinstance(value, tuple):
        return tuple(_select(item, rows, selected) for item in value)
    if _has_fields(value):
        fields = {
            field.name: _select(getattr(value, field.name), rows, selected) for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    return value


def _parts(value: Any) -> Iterator[Any]:
    """Yield a state and all its nested parts."""
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
