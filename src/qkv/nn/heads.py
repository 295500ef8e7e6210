"""Multi-head attention: project, split into heads, attend, merge, project."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Attend, Mask
from qkv.errors import InputError
from qkv.types import Float, Tensor


@dataclass(frozen=True)
class KeyValue:
    """The keys and values of a sequence, split into heads: what later queries need of it."""

    key: Float[Tensor, "batch heads length dim"]
    value: Float[Tensor, "batch heads length dim"]

    def followed_by(self, other: "KeyValue") -> "KeyValue":
        """These positions and then the other's."""
        return KeyValue(torch.cat((self.key, other.key), dim=2), torch.cat((self.value, other.value), dim=2))


class MultiHead(nn.Module):
    """MultiHead(x, y) = Concat(head_1 ... head_h) W_O,   head_i = attend(x W_Qi, y W_Ki, y W_Vi)."""

    def __init__(self, dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if dim % heads:
            raise InputError(f"{heads} heads cannot share a width of {dim} evenly")
        self.heads = heads
        self.project = nn.Linear(dim, 3 * dim)  # W_Q, W_K and W_V of all heads, one below the other
        self.output = nn.Linear(dim, dim)  # W_O
        self.attend = Attend(dropout=dropout)
        for part in self.project.weight.chunk(3):
            nn.init.xavier_uniform_(part)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.project.bias)
        nn.init.zeros_(self.output.bias)

    def forward(
        self, x: Float[Tensor, "batch query dim"], mask: Mask | None = None, past: KeyValue | None = None
    ) -> tuple[Float[Tensor, "batch query dim"], KeyValue]:
        """Self-attention over `past` (if any) and `x`; also gives the keys and values of both, for the next call."""
        query, key, value = (self._split(part) for part in self.project(x).chunk(3, dim=-1))
        present = KeyValue(key, value)
        if past is not None:
            present = past.followed_by(present)
        return self._read(query, present, mask), present

    def keys_values(self, memory: Float[Tensor, "batch key dim"]) -> KeyValue:
        """The keys and values of a memory, computed once for all queries to come."""
        dim = memory.shape[-1]
        both = F.linear(memory, self.project.weight[dim:], self.project.bias[dim:])
        key, value = both.chunk(2, dim=-1)
        return KeyValue(self._split(key), self._split(value))

    def cross(
        self, x: Float[Tensor, "batch query dim"], memory: KeyValue, mask: Mask | None = None
    ) -> Float[Tensor, "batch query dim"]:
        """Attention over a memory that `keys_values` prepared."""
        dim = x.shape[-1]
        query = self._split(F.linear(x, self.project.weight[:dim], self.project.bias[:dim]))
        return self._read(query, memory, mask)

    def _read(
        self, query: Float[Tensor, "batch heads query head_dim"], memory: KeyValue, mask: Mask | None
    ) -> Float[Tensor, "batch query dim"]:
        read = self.attend(query, memory.key, memory.value, mask=mask)
        return self.output(read.output.transpose(1, 2).flatten(2))  # b h q d -> b q (h d)

    def _split(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch heads length head_dim"]:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
