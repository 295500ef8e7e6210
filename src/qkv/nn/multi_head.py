"""Multi-head attention: project, split into heads, attend, merge, project."""

from torch import nn
from torch.nn import functional as F

from qkv.attention import Align, Attend, Cache, KeyValue, Mask, Position, Score, StaticKeyValue
from qkv.errors import InputError
from qkv.types import Float, Int, Tensor


class MultiHead(nn.Module):
    """MultiHead(x, y) = Concat(head_1 ... head_h) W_O,   head_i = attend(x W_Qi, y W_Ki, y W_Vi).

    From Vaswani et al. (2017). With fewer `kv_heads` than heads, groups of heads share keys and values (grouped-query
    attention, Ainslie et al. 2023; multi-query attention with one: Shazeer 2019).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        dropout: float = 0.0,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        score: Score | None = None,
        align: Align | None = None,
        position: Position | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or dim % heads:
            raise InputError(f"dim {dim} must be divisible by heads {heads}")
        if kv_heads < 1 or heads % kv_heads:
            raise InputError(f"heads {heads} must be divisible by kv_heads {kv_heads}")
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = dim // heads
        self._sizes = (dim, kv_heads * self.head_dim, kv_heads * self.head_dim)  # of queries, keys and values
        self.project = nn.Linear(dim, sum(self._sizes), bias=bias)  # W_Q, W_K and W_V of all heads, stacked
        self.output = nn.Linear(dim, dim)  # W_O
        self.attend = Attend(score, align, position, dropout, heads=heads)
        for part in self.project.weight.split(self._sizes):
            nn.init.xavier_uniform_(part)
        nn.init.xavier_uniform_(self.output.weight)
        for linear in (self.project, self.output):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(
        self,
        x: Float[Tensor, "batch query dim"],
        mask: Mask | None = None,
        past: Cache | None = None,
        *,
        position: Position | None = None,
    ) -> tuple[Float[Tensor, "batch query dim"], Cache]:
        """Self-attention over `past` and `x`; also returns the key/value cache extended by `x`."""
        query, key, value = (self._split(part) for part in self.project(x).split(self._sizes, dim=-1))
        if past is None:
            present: Cache = KeyValue(self.attend.keys(key, position=position).tensor, value)
        else:
            present = past.append(self.attend.keys(key, past.length, position=position), value)
        return self._attend_and_project(query, present, mask, position, present.first_position(query.shape[2])), present

    def keys_values(self, memory: Float[Tensor, "batch key dim"], *, position: Position | None = None) -> KeyValue:
        """Precompute the keys and values of a memory for cross-attention."""
        key, value = (self._split(part) for part in self._project(memory, slice(self._sizes[0], None)).chunk(2, dim=-1))
        return KeyValue(self.attend.keys(key, position=position).tensor, value)

    def cross(
        self,
        x: Float[Tensor, "batch query dim"],
        memory: KeyValue,
        mask: Mask | None = None,
        *,
        position: Position | None = None,
        start: int | Int[Tensor, "*batch"] | None = None,
    ) -> Float[Tensor, "batch query dim"]:
        """Cross-attention over a memory from `keys_values`; `start` is the position of the first query."""
        query = self._split(self._project(x, slice(self._sizes[0])))
        return self._attend_and_project(query, memory, mask, position, start)

    def static_cache(self, batch: int, capacity: int, length: int | Int[Tensor, ""] = 0) -> StaticKeyValue:
        """Return an empty cache for `capacity` tokens; pass `length` as a zero tensor for use in a CUDA graph."""
        token = self.project.weight.new_zeros(batch, self.kv_heads, 1, self.head_dim)
        return StaticKeyValue.like(self.attend.keys(token), token, capacity, length)

    def _project(self, x: Float[Tensor, "batch length dim"], rows: slice) -> Float[Tensor, "batch length features"]:
        """Project with the given rows of the stacked W_Q, W_K and W_V."""
        bias = self.project.bias
        return F.linear(x, self.project.weight[rows], None if bias is None else bias[rows])

    def _attend_and_project(
        self,
        query: Float[Tensor, "batch heads query head_dim"],
        memory: Cache,
        mask: Mask | None,
        position: Position | None,
        start: int | Int[Tensor, "*batch"] | None,
    ) -> Float[Tensor, "batch query dim"]:
        attended = self.attend(
            query, memory.keys, memory.values, memory.mask_unfilled(mask), position=position, start=start
        )
        return self.output(attended.output.transpose(1, 2).flatten(2))  # b h q d -> b q (h d)

    def _split(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch heads length head_dim"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
