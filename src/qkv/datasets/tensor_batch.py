"""Base class of the batches of all tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, TypeVar

import torch

from qkv.errors import InputError
from qkv.types import Tensor

AnyBatch = TypeVar("AnyBatch", bound="TensorBatch")


class TensorBatch:
    """Input of one training step: a frozen dataclass with tensor fields."""

    shared: ClassVar[tuple[str, ...]] = ()  # tensors without a dimension of examples

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

    def count_tokens(self) -> int:
        """Count the tokens that the loss is averaged over; a batch with a field `tokens` counts them in its tensors."""
        if any(field.name == "tokens" for field in fields(self)):  # type: ignore[arg-type]
            raise InputError(f"{type(self).__name__} cannot be split: it does not define count_tokens")
        tokens: int = self.tokens  # type: ignore[attr-defined]
        return tokens

    def split(self: AnyBatch, count: int) -> list[tuple[AnyBatch, float]]:
        """Split the examples into `count` parts of about the same size, each with its fraction of the tokens.

        The losses of the parts, weighted by these fractions, sum to the loss of the batch. A part without tokens, which
        has no mean loss, is replaced by the whole batch with a fraction of 0.
        """
        rows = {name: tensor for name, tensor in self.tensors.items() if name not in self.shared}
        if len({len(tensor) for tensor in rows.values()}) != 1:
            raise InputError(f"{type(self).__name__} cannot be split: its tensors have no common first dimension")
        chunks = {name: tensor.tensor_split(count) for name, tensor in rows.items()}
        parts = [self.with_tensors({name: chunk[number] for name, chunk in chunks.items()}) for number in range(count)]
        counts = [part.count_tokens() for part in parts]
        if "tokens" in {field.name for field in fields(self)}:  # type: ignore[arg-type]
            parts = [replace(part, tokens=tokens) for part, tokens in zip(parts, counts, strict=True)]  # type: ignore[type-var]
        total = sum(counts)
        return [(part, tokens / total) if tokens else (self, 0.0) for part, tokens in zip(parts, counts, strict=True)]


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
