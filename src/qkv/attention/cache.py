"""What later queries need of the tokens so far: their keys, as the score compares them, and their values.

A cache that grows suits training and short sequences; one that is allocated once (static) suits long ones, and with a
length that is a tensor, compiled code and CUDA graphs, whose memory and shapes may not change from token to token.
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
    """The keys and values of a sequence, split into heads."""

    length: int | Int[Tensor, ""]  # how many tokens there are: the place of the next

    @abstractmethod
    def followed_by(self, keys: Keys, value: Float[Tensor, "batch kv_heads further value_dim"]) -> "Cache":
        """These tokens and then further ones."""

    @property
    @abstractmethod
    def keys(self) -> Keys:
        """What there is to compare queries with."""

    @property
    @abstractmethod
    def values(self) -> Float[Tensor, "batch kv_heads key value_dim"]:
        """What there is to read."""

    def start(self, queries: int) -> int | Int[Tensor, ""]:
        """The place of the first of so many queries that stand at the last tokens."""
        return self.length - queries

    def masked(self, mask: Mask | None) -> Mask | None:
        """A mask that hides, beside what the given one does, the memory where no token stands yet."""
        return mask


@final
@dataclass(frozen=True)
class KeyValue(Cache):
    """A cache that grows: each further token makes a longer one, and this one stays as it is."""

    key: Float[Tensor, "batch kv_heads length features"]
    value: Float[Tensor, "batch kv_heads length value_dim"]

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.key.shape[2]

    def followed_by(self, keys: Keys, value: Float[Tensor, "batch kv_heads further value_dim"]) -> "KeyValue":
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
    """A cache in memory that is allocated once; further tokens are written into it, behind those that it shows.

    With a length that is a number, queries meet the filled part only. With a length that is a tensor, they meet all of
    the memory, with what is not filled yet behind a mask: nothing then depends on the length but numbers on the device.
    Going over the capacity is noticed in time only where the length is a number.
    """

    key: Float[Tensor, "batch kv_heads capacity features"]  # zeros where nothing stands yet: what is masked
    value: Float[Tensor, "batch kv_heads capacity value_dim"]  # must still be finite
    length: int | Int[Tensor, ""] = 0

    @classmethod
    def like(
        cls,
        keys: Keys,
        value: Float[Tensor, "batch kv_heads some value_dim"],
        capacity: int,
        length: int | Int[Tensor, ""] = 0,
    ) -> "StaticKeyValue":
        """Room for so many keys and values of the kind of these; give the length as a tensor to keep it on a device."""
        room = (*value.shape[:2], capacity)
        return cls(keys.tensor.new_zeros(*room, keys.tensor.shape[-1]), value.new_zeros(*room, value.shape[-1]), length)

    def followed_by(self, keys: Keys, value: Float[Tensor, "batch kv_heads further value_dim"]) -> "StaticKeyValue":
        further, capacity = value.shape[2], self.value.shape[2]
        if isinstance(self.length, int):
            if self.length + further > capacity:
                raise InputError(
                    f"this cache has room for {capacity} tokens, {self.length} are in it, and {further} more do not "
                    "fit: make it larger"
                )
            self.key[:, :, self.length : self.length + further] = keys.tensor
            self.value[:, :, self.length : self.length + further] = value
        else:
            places = self.length + torch.arange(further, device=value.device)
            self.key.index_copy_(2, places, keys.tensor)
            self.value.index_copy_(2, places, value)
        return replace(self, length=self.length + further)

    @property
    def keys(self) -> Keys:
        return Keys(self._filled(self.key), lasting=False)

    @property
    def values(self) -> Float[Tensor, "batch kv_heads key value_dim"]:
        return self._filled(self.value)

    def masked(self, mask: Mask | None) -> Mask | None:
        if isinstance(self.length, int) or isinstance(mask, Causal):  # no query of a causal mask sees what comes later
            return mask
        filled = Prefix(self.length.view(1))
        return filled if mask is None else mask & filled

    def _filled(self, memory: Float[Tensor, "batch kv_heads capacity dim"]) -> Float[Tensor, "batch kv_heads key dim"]:
        return memory[:, :, : self.length] if isinstance(self.length, int) else memory
