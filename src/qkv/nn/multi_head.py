"""Multi-head attention: project, split into heads, attend, merge, project."""

from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Align, AnyMask, Attend, Keys, KeyValue, Position, Score, Sizes
from qkv.config import Term, require
from qkv.errors import ConfigError, InputError, ShapeError
from qkv.nn.initialization import SkipInit
from qkv.nn.quantized import QuantizedLinear
from qkv.types import Float, Int, Tensor

BackendName = Literal["auto", "reference", "sdpa", "flex", "triton", "gather"]


class MultiHeadAttention(nn.Module):
    """MultiHead(x, y) = Concat(head_1 ... head_h) W_O,   head_i = attend(x W_Qi, y W_Ki, y W_Vi).

    From Vaswani et al. (2017).

    Args:
        dim: Features of the input and of the output, divisible by `heads`.
        heads: Number of heads.
        dropout: Probability to drop an attention weight in training.
        bias: Whether W_Q, W_K and W_V have a bias.
        out_bias: Whether W_O has a bias.
        kv_heads: Number of heads of keys and values, by default `heads`; with fewer, groups of consecutive heads share
            keys and values: grouped-query attention (Ainslie et al. 2023).
        score: Score function; by default `ScaledDot()`.
        align: Maps scores to weights; by default `Softmax()`.
        position: Position term, such as `Rotary`.
        backend: Implementation of attention; "auto" chooses the fastest one.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        dropout: float = 0.0,
        *,
        bias: bool = True,
        out_bias: bool = True,
        kv_heads: int | None = None,
        score: Score | None = None,
        align: Align | None = None,
        position: Position | None = None,
        backend: BackendName = "auto",
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise InputError(f"dim {dim} must be divisible by heads {heads}")
        kv_heads = kv_heads or heads
        if heads % kv_heads:
            raise InputError(f"heads {heads} must be divisible by kv_heads {kv_heads}")
        self.dim = dim
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = dim // heads
        self.qkv_dims = (dim, kv_heads * self.head_dim, kv_heads * self.head_dim)  # of queries, keys and values
        self.qkv_proj = nn.Linear(dim, sum(self.qkv_dims), bias=bias)  # W_Q, W_K and W_V of all heads, stacked
        self.out_proj = nn.Linear(dim, dim, bias=out_bias)  # W_O
        self.attend = Attend(score, align, position, dropout, backend, heads)
        for part in self.qkv_proj.weight.split(self.qkv_dims):
            nn.init.xavier_uniform_(part)
        nn.init.xavier_uniform_(self.out_proj.weight)
        for linear in (self.qkv_proj, self.out_proj):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(
        self,
        x: Float[Tensor, "batch query dim"],
        mask: AnyMask | None = None,
        past: KeyValue | None = None,
        *,
        position: Position | None = None,
    ) -> tuple[Float[Tensor, "batch query dim"], KeyValue]:
        """Self-attention over `past` and `x`.

        Args:
            x: Input, [batch, query, dim].
            mask: A `Mask`, or a boolean tensor [query, key] or [batch, heads, query, key], true where allowed.
            past: Keys and values of earlier tokens.
            position: Replaces the position of the constructor.

        Returns:
            The output [batch, query, dim], and the key/value cache extended by `x`.
        """
        query, key, value = (self.split_heads(part) for part in self.qkv_proj(x).split(self.qkv_dims, dim=-1))
        if past is None:
            present = KeyValue(self.attend.keys(key, position=position).tensor, value)
        else:
            present = past.append(self.attend.keys(key, past.length, position=position), value)
        start = present.length - query.shape[2]
        return self._attend_and_project(query, present, mask, position, start), present

    def keys_values(self, memory: Float[Tensor, "batch key dim"], *, position: Position | None = None) -> KeyValue:
        """Precompute the keys and values of a memory for cross-attention."""
        projected = self._project(memory, slice(self.dim, None))
        key, value = (self.split_heads(part) for part in projected.chunk(2, dim=-1))
        return KeyValue(self.attend.keys(key, position=position).tensor, value)

    def cross(
        self,
        x: Float[Tensor, "batch query dim"],
        memory: KeyValue,
        mask: AnyMask | None = None,
        *,
        position: Position | None = None,
        start: int | Int[Tensor, "*batch"] | None = None,
    ) -> Float[Tensor, "batch query dim"]:
        """Cross-attention over a memory from `keys_values`; `start` is the position of the first query."""
        query = self.split_heads(self._project(x, slice(self.dim)))
        return self._attend_and_project(query, memory, mask, position, start)

    def split_heads(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch heads length head_dim"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def merge_heads(self, x: Float[Tensor, "batch heads length head_dim"]) -> Float[Tensor, "batch length features"]:
        return x.transpose(1, 2).flatten(2)

    def _project(self, x: Float[Tensor, "batch length dim"], rows: slice) -> Float[Tensor, "batch length features"]:
        """Project with the given rows of the stacked W_Q, W_K and W_V."""
        projection: nn.Module = self.qkv_proj
        if isinstance(projection, QuantizedLinear):
            return projection(x, rows)
        bias = self.qkv_proj.bias
        return F.linear(x, self.qkv_proj.weight[rows], None if bias is None else bias[rows])

    def _attend_and_project(
        self,
        query: Float[Tensor, "batch heads query head_dim"],
        memory: KeyValue,
        mask: AnyMask | None,
        position: Position | None,
        start: int | Int[Tensor, "*batch"] | None,
    ) -> Float[Tensor, "batch query dim"]:
        attended = self.attend(query, Keys(memory.key), memory.value, mask, position=position, start=start)
        return self.out_proj(self.merge_heads(attended.output))


def head_sizes(dim: int, heads: int, max_keys: int) -> Sizes:
    """Return the sizes of an attention head, from which the terms of a config are built."""
    require(dim % heads == 0, f"dim {dim} must be divisible by heads {heads}")
    head_dim = dim // heads
    return Sizes(query=head_dim, key=head_dim, hidden=head_dim, max_keys=max_keys, heads=heads)


def check_terms(sizes: Sizes, *, cross_attention: bool = False, **terms: Term) -> None:
    """Raise ConfigError unless the terms of a config can be built with these sizes; nothing is allocated.

    In cross-attention, queries and keys may have different sizes, so the score is also called with both; and there is
    a reward for each query, which the estimator "reinforce" needs.
    """
    for key, term in terms.items():
        try:
            with torch.device("meta"), SkipInit():
                module = term.build(sizes)
                # A call on the meta device imports torch._dynamo (seconds), so scores are called only if necessary.
                if cross_attention and isinstance(module, Score):
                    module(torch.empty(1, 1, 1, sizes.query), torch.empty(1, 1, 1, sizes.key))
        except (InputError, ShapeError, RuntimeError) as error:  # RuntimeError of torch: sizes that do not match
            raise ConfigError(f"{key} {term.name!r}: {error}") from None
        require(
            cross_attention or term.options.get("estimator") != "reinforce",
            f"{key} {term.name!r}: the estimator 'reinforce' needs a reward for each query, which this model does not "
            "have: choose 'straight-through' or 'gumbel'",
        )
