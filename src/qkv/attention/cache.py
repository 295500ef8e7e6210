"""Key-value cache for incremental decoding: transformed keys and values of the tokens so far."""

from dataclasses import dataclass
from typing import final

import torch

from qkv.attention.score import Keys
from qkv.types import Float, Tensor


@final
@dataclass(frozen=True)
class KeyValue:
    """Keys and values of a sequence, split into heads."""

    key: Float[Tensor, "batch kv_heads length features"]  # transformed by the position and the score
    value: Float[Tensor, "batch kv_heads length value_dim"]

    @property
    def length(self) -> int:
        """Number of tokens, i.e. the position of the next one."""
        return self.key.shape[2]

    def append(self, keys: Keys, value: Float[Tensor, "batch kv_heads new value_dim"]) -> "KeyValue":
        """Return a longer copy, extended by new tokens."""
        return KeyValue(torch.cat((self.key, keys.tensor), dim=2), torch.cat((self.value, value), dim=2))
