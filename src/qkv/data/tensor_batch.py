"""What every batch of a task can do, whatever is in it."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TypeVar

import torch

from qkv.types import Tensor

Some = TypeVar("Some", bound="TensorBatch")


class TensorBatch:
    """What one step of training looks at: a frozen dataclass, of whose fields some are tensors."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        held = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in held.items() if isinstance(value, Tensor)}

    def to(self: Some, device: torch.device) -> Some:
        """The same batch on a device."""
        if all(tensor.device == device for tensor in self.tensors.values()):
            return self
        return self.with_tensors({name: tensor.to(device, non_blocking=True) for name, tensor in self.tensors.items()})

    def with_tensors(self: Some, tensors: Mapping[str, Tensor]) -> Some:
        """The same batch with other tensors in place of its own."""
        return replace(self, **tensors)  # type: ignore[type-var]
