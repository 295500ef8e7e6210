"""States that decoders carry from token to token: frozen dataclasses of tensors, the batch first in each.

A tensor without dimensions is one number for all rows, as a number would be.
"""

import dataclasses
from typing import Any, TypeVar

from qkv.types import Int, Tensor

T = TypeVar("T")


def select(state: T, rows: Int[Tensor, "rows"]) -> T:
    """The state of the given rows of the batch, in that order: what a beam search does at every step."""
    return _select(state, rows)


def _select(value: Any, rows: Int[Tensor, "rows"]) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, rows) if value.ndim else value
    if isinstance(value, tuple):
        return tuple(_select(item, rows) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _select(getattr(value, field.name), rows) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
