"""Shape of the scores of one attention call, and the indices of its batch rows, heads, queries and keys."""

from typing import NamedTuple, final

import torch

from qkv.errors import ShapeError
from qkv.types import Bool, Float, Int, Shaped, Tensor

Queries = Float[Tensor, "batch heads query dim"]
Scores = Float[Tensor, "batch heads query key"]
Weights = Float[Tensor, "batch heads query key"]  # attention weights
Allowed = Bool[Tensor, "#batch #heads #query #key"]  # a mask, true where attention is allowed
Outputs = Float[Tensor, "batch heads query value_dim"]


class ScoreShape(NamedTuple):
    """Shape of the scores [batch, heads, query, key], and the position of the first query among the keys.

    Attributes:
        batch: Batch size.
        heads: Number of query heads.
        queries: Number of queries.
        keys: Number of keys.
        device: Device of the scores.
        start: Position of the first query: shared, or one per batch row; by default, the last query is at the last key.
        head_subset: Heads selected from the call, None for all.
        query_subset: Queries selected from the call, None for all.
        total_queries: Number of queries of the whole call, if `query_subset` is set.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    device: torch.device
    start: int | Int[Tensor, "*batch"] | None = None
    head_subset: tuple[int, ...] | None = None
    query_subset: tuple[int, ...] | None = None
    total_queries: int | None = None

    @property
    def first_position(self) -> int | Int[Tensor, "*batch"]:
        """Position of the first query; by default the last query is aligned with the last key."""
        queries = self.queries if self.total_queries is None else self.total_queries
        return self.keys - queries if self.start is None else self.start

    @property
    def ends_at_last_key(self) -> bool:
        """Whether the last query is known to be at the position of the last key."""
        return self.start is None or (isinstance(self.start, int) and self.start == self.keys - self.queries)

    def query_positions(self) -> Int[Tensor, "#batch query"]:
        """Position of each query among the keys."""
        return CellIndex(self).query_position[:, 0, :, 0]

    def subset(self, heads: tuple[int, ...] | None, queries: tuple[int, ...] | None) -> "ScoreShape":
        """Restrict the shape to a subset of heads and queries."""
        return self._replace(
            heads=self.heads if heads is None else len(heads),
            queries=self.queries if queries is None else len(queries),
            head_subset=heads,
            query_subset=queries,
            total_queries=self.queries,
        )


class Index:
    """Indices (batch, head, query, key) of score cells.

    Masks and biases are functions of an index, so that the same code runs for a single cell inside a kernel (this
    class, without checks) and vectorized over all cells (`CellIndex`).
    """

    batch: Int[Tensor, "..."]
    head: Int[Tensor, "..."]
    query: Int[Tensor, "..."]  # index of the query in the call
    query_position: Int[Tensor, "..."]  # position of the query among the keys
    step: Int[Tensor, "..."]  # index of the query in its sequence: the time step of a decoder
    key: Int[Tensor, "..."]

    def __init__(self, shape: ScoreShape, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> None:
        self.batch, self.head, self.query, self.key = batch, head, query, key
        self.query_position = query + self._per_batch(shape.first_position)
        self.step = query if shape.start is None else query + self._per_batch(shape.start)

    def per_batch(self, values: Shaped[Tensor, "*batch"]) -> Shaped[Tensor, "..."]:
        """Look up one value per batch row (or a single shared value)."""
        return values if values.ndim == 0 else values[self.batch if values.shape[0] > 1 else self.batch * 0]

    def per_head(self, values: Shaped[Tensor, "heads"]) -> Shaped[Tensor, "..."]:
        """Look up one value per head."""
        return values[self.head]

    def per_position(
        self, values: Shaped[Tensor, "batch length"], position: Int[Tensor, "..."]
    ) -> Shaped[Tensor, "..."]:
        """Look up one value per batch row and position."""
        return values[self.batch, position]

    def per_query(
        self, values: Shaped[Tensor, "batch heads query choices"], choice: Int[Tensor, "..."]
    ) -> Shaped[Tensor, "..."]:
        """Look up `values[batch, head, query, choice]`, among the selected heads and queries."""
        return values[self.batch, self.head, self.query, choice]

    def per_cell(self, values: Shaped[Tensor, "#batch #heads #query #key"]) -> Shaped[Tensor, "..."]:
        """Look up one value per cell of the whole call."""
        indices = zip((self.batch, self.head, self.query, self.key), values.shape, strict=True)
        return values[tuple(index if size > 1 else index * 0 for index, size in indices)]

    def _per_batch(self, values: int | Int[Tensor, "*batch"]) -> int | Int[Tensor, "..."]:
        return self.per_batch(values) if isinstance(values, Tensor) else values


@final
class CellIndex(Index):
    """Index of all cells of the scores at once: each part has size 1 in the dimensions of the others."""

    def __init__(self, shape: ScoreShape) -> None:
        self.shape = shape

    @property
    def batch(self) -> Int[Tensor, "batch 1 1 1"]:  # type: ignore[override]
        return torch.arange(self.shape.batch, device=self.shape.device).view(-1, 1, 1, 1)

    @property
    def head(self) -> Int[Tensor, "1 heads 1 1"]:  # type: ignore[override]
        return _index_range(self.shape.head_subset, self.shape.heads, self.shape.device).view(1, -1, 1, 1)

    @property
    def query(self) -> Int[Tensor, "1 1 query 1"]:  # type: ignore[override]
        return _index_range(self.shape.query_subset, self.shape.queries, self.shape.device).view(1, 1, -1, 1)

    @property
    def query_position(self) -> Int[Tensor, "#batch 1 query 1"]:  # type: ignore[override]
        first = self._per_batch(self.shape.first_position)
        return self.query if isinstance(first, int) and first == 0 else self.query + first

    @property
    def step(self) -> Int[Tensor, "#batch 1 query 1"]:  # type: ignore[override]
        return self.query if self.shape.start is None else self.query + self._per_batch(self.shape.start)

    @property
    def key(self) -> Int[Tensor, "1 1 1 key"]:  # type: ignore[override]
        return torch.arange(self.shape.keys, device=self.shape.device).view(1, 1, 1, -1)

    def per_batch(self, values: Shaped[Tensor, "*batch"]) -> Shaped[Tensor, "#batch 1 1 1"]:
        if values.ndim > 1 or (values.ndim == 1 and values.shape[0] != 1 and values.shape[0] != self.shape.batch):
            raise ShapeError(
                f"a mask or start has one value per batch row, of shape {list(values.shape)}, "
                f"which does not broadcast to scores of shape {list(self.shape[:4])} [batch, heads, query, key]"
            )
        return values.to(self.shape.device).view(-1, 1, 1, 1)

    def per_position(
        self, values: Shaped[Tensor, "batch length"], position: Int[Tensor, "..."]
    ) -> Shaped[Tensor, "..."]:
        if values.shape != (self.shape.batch, self.shape.keys):
            raise ShapeError(
                f"a mask has one value per position, of shape {list(values.shape)}, but there are "
                f"{[self.shape.batch, self.shape.keys]} keys [batch, key]"
            )
        if values.shape[1] == 0:  # no keys, so no cells
            return values.new_zeros(torch.broadcast_shapes(self.batch.shape, position.shape), device=self.shape.device)
        return super().per_position(values.to(self.shape.device), position)

    def per_query(
        self, values: Shaped[Tensor, "batch heads query choices"], choice: Int[Tensor, "..."]
    ) -> Shaped[Tensor, "batch heads query key"]:
        return values.gather(-1, choice.expand(*values.shape[:3], self.shape.keys))

    def per_cell(self, values: Shaped[Tensor, "#batch #heads #query #key"]) -> Shaped[Tensor, "..."]:
        values = values.to(self.shape.device)
        for dim, subset in ((1, self.shape.head_subset), (2, self.shape.query_subset)):
            values = values if values.shape[dim] == 1 else select_along(values, dim, subset)
        return values


def select_along(x: Shaped[Tensor, "..."], dim: int, indices: tuple[int, ...] | None) -> Shaped[Tensor, "..."]:
    """Select indices along a dimension (None for all), as a view if they are consecutive."""
    if indices is None:
        return x
    if _is_range(indices):
        return x.narrow(dim, indices[0], len(indices))
    return x.index_select(dim, index_tensor(indices, x.device))


def index_tensor(indices: tuple[int, ...], device: torch.device) -> Int[Tensor, "indices"]:
    """Return the indices as a tensor, created on the device: CUDA graphs cannot capture a copy from the host."""
    if _is_range(indices):
        return torch.arange(indices[0], indices[0] + len(indices), device=device)
    return torch.cat([torch.arange(index, index + 1, device=device) for index in indices])


def _index_range(subset: tuple[int, ...] | None, count: int, device: torch.device) -> Int[Tensor, "indices"]:
    return torch.arange(count, device=device) if subset is None else index_tensor(subset, device)


def _is_range(indices: tuple[int, ...]) -> bool:
    return indices == tuple(range(indices[0], indices[0] + len(indices)))
