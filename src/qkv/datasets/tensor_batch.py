"""Base class of the batches of all tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch

from qkv.types import Tensor

AnyBatch = TypeVar("AnyBatch", bound="TensorBatch")


class TensorBatch:
    """Input of one training step: a frozen dataclass with tensor fields."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to(self: AnyBatch, device: torch.device) -> AnyBatch:
        """Move the tensors to a device."""
        if all(tensor.device == device for tensor in self.tensors.values()):
            return self
        return self.with_tensors({name: tensor.to(device, non_blocking=True) for name, tensor in self.tensors.items()})

    def with_tensors(self: AnyBatch, tensors: Mapping[str, Tensor]) -> AnyBatch:
        """Return a copy of the batch with these tensors replaced."""
        return replace(self, **tensors)  # type: ignore[type-var]


@dataclass(frozen=True)
class NamedTensors(TensorBatch):
    """Tensors by name, with the examples of the batch first: `batch["tokens"]`."""

    values: Mapping[str, Tensor]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return dict(self.values)

    @property
    def tokens(self) -> int:
        return len(next(iter(self.values.values())))

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "NamedTensors":
        return NamedTensors({**self.values, **tensors})
