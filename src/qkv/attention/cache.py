"""Key-value caches for incremental decoding: transformed keys and values of the tokens so far.

A growing cache suits training and short sequences. A static cache is allocated once and suits long sequences; with a
tensor as its length it also works in compiled code and CUDA graphs, where memory and shapes must not change.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import torch

from qkv.attention.mask import Causal, Mask, Prefix
from qkv.attention.score import Keys
from qkv.errors import InputError
from qkv.types import Float, Int, Tensor


class Cache(ABC):
    """Keys and values of a sequence, split into heads."""

    length: int | Int[Tensor, ""]  # number of tokens, i.e. the position of the next one

    @abstractmethod
    def append(self, keys: Keys, value: Float[Tensor, "batch kv_heads new value_dim"]) -> "Cache":
        """Return the cache extended by new tokens."""

    @property
    @abstractmethod
    def keys(self) -> Keys:
        """The transformed keys."""

    @property
    @abstractmethod
    def values(self) -> Float[Tensor, "batch kv_heads key value_dim"]:
        """The values."""

    def first_position(self, queries: int) -> int | Int[Tensor, ""]:
        """Position of the first query, if `queries` queries belong to the last tokens."""
        return self.length - queries

    def mask_unfilled(self, mask: Mask | None) -> Mask | None:
        """Combine a mask with one that hides the empty part of the cache."""
        return mask


@final
@dataclass(frozen=True)
class KeyValue(Cache):
    """A growing cache: `append` returns a longer copy and leaves this one unchanged."""

    key: Float[Tensor, "batch kv_heads length features"]
    value: Float[Tensor, "batch kv_heads length value_dim"]

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.key.shape[2]

    def append(self, keys: Keys, value: Float[Tensor, "batch kv_heads new value_dim"]) -> "KeyValue":
        return KeyValue(torch.cat((self.key, keys.tensor), dim=2), torch.cat((self.value, value), dim=2))

    @property
    def keys(self) -> Keys:
        return Keys(self.key)

    @property
    def values(self) -> Float[Tensor, "batch kv_heads length value_dim"]:
        return self.value


@final
@dataclass(frozen=True)
class StaticKeyValue(Cache):
    """A cache of fixed capacity, allocated once; `append` writes new tokens in place.

    With an integer length, queries attend to the filled part only. With a tensor as length, they attend to the whole
    buffer, its empty part masked, so that no shape depends on the length. Exceeding the capacity is detected only
    if the length is an integer.
    """

    key: Float[Tensor, "batch kv_heads capacity features"]  # zero where empty, because masked
    value: Float[Tensor, "batch kv_heads capacity value_dim"]  # keys and values must be finite
    length: int | Int[Tensor, ""] = 0

    @classmethod
    def like(
        cls,
        keys: Keys,
        value: Float[Tensor, "batch kv_heads some value_dim"],
        capacity: int,
        length: int | Int[Tensor, ""] = 0,
    ) -> "StaticKeyValue":
        """Allocate an empty cache for keys and values like these; a tensor as `length` stays on its device."""
        size = (*value.shape[:2], capacity)
        return cls(keys.tensor.new_zeros(*size, keys.tensor.shape[-1]), value.new_zeros(*size, value.shape[-1]), length)

    def append(self, keys: Keys, value: Float[Tensor, "batch kv_heads new value_dim"]) -> "StaticKeyValue":
        new, capacity = value.shape[2], self.value.shape[2]
        if isinstance(self.length, int):
            if self.length + new > capacity:
                raise InputError(
                    f"cannot append {new} tokens to a cache of capacity {capacity} that holds {self.length}: "
                    "allocate a larger one"
                )
            self.key[:, :, self.length : self.length + new] = keys.tensor
            self.value[:, :, self.length : self.length + new] = value
        else:
            positions = self.length + torch.arange(new, device=value.device)
            self.key.index_copy_(2, positions, keys.tensor)
            self.value.index_copy_(2, positions, value)
        return replace(self, length=self.length + new)

    @property
    def keys(self) -> Keys:
        return Keys(self._filled(self.key), immutable=False)

    @property
    def values(self) -> Float[Tensor, "batch kv_heads key value_dim"]:
        return self._filled(self.value)

    def mask_unfilled(self, mask: Mask | None) -> Mask | None:
        if isinstance(self.length, int) or isinstance(mask, Causal):  # a causal mask hides later positions already
            return mask
        filled = Prefix(self.length.view(1))
        return filled if mask is None else mask & filled

    def _filled(self, buffer: Float[Tensor, "batch kv_heads capacity dim"]) -> Float[Tensor, "batch kv_heads key dim"]:
        return buffer[:, :, : self.length] if isinstance(self.length, int) else buffer
