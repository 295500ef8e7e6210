"""Where a call of the operator stands: how large its scores are, and which places its queries and keys have."""

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch

from qkv.errors import ShapeError
from qkv.types import Int, Shaped, Tensor


class Extent(NamedTuple):
    """The sizes of the scores, and where the queries stand among the keys."""

    batch: int
    heads: int
    queries: int
    keys: int
    device: torch.device
    start: int | Int[Tensor, "*batch"] | None = None  # the place of the first query: one number, or one for each row
    seen_heads: Int[Tensor, "heads"] | None = None  # which heads and queries of a call these are,
    seen_queries: Int[Tensor, "query"] | None = None  # where not all of them are looked at,
    of_queries: int | None = None  # and how many queries the call has

    @property
    def first_place(self) -> int | Int[Tensor, "*batch"]:
        """The place of the first query; unless it was given, the last query stands at the last key."""
        queries = self.queries if self.of_queries is None else self.of_queries
        return self.keys - queries if self.start is None else self.start

    @property
    def ends_at_the_last_key(self) -> bool:
        """Whether the last query is known to stand at the last key."""
        return self.start is None or (isinstance(self.start, int) and self.start == self.keys - self.queries)

    def places(self) -> Int[Tensor, "#batch query"]:
        """The place of each query among the keys."""
        return Cells(self).place[:, 0, :, 0]

    def of(self, heads: Int[Tensor, "heads"] | None, queries: Int[Tensor, "query"] | None) -> "Extent":
        """The same call, looked at for some heads and queries only."""
        return self._replace(
            heads=self.heads if heads is None else len(heads),
            queries=self.queries if queries is None else len(queries),
            seen_heads=heads,
            seen_queries=queries,
            of_queries=self.queries,
        )


class Places(ABC):
    """Cells (batch, head, query, key) of the scores: indices that broadcast against each other.

    A term that is written over them serves one cell inside a kernel as well as all cells at once.
    """

    batch: Int[Tensor, "..."]
    head: Int[Tensor, "..."]
    query: Int[Tensor, "..."]  # the number of the query in the call
    place: Int[Tensor, "..."]  # the place of the query among the keys
    step: Int[Tensor, "..."]  # the place of the query among all queries of its sequence: the time step of a decoder
    key: Int[Tensor, "..."]

    @abstractmethod
    def of_batch(self, values: Shaped[Tensor, "*batch"]) -> Shaped[Tensor, "..."]:
        """A value for each row of the batch (or one for all), at these cells."""

    @abstractmethod
    def of_head(self, values: Shaped[Tensor, "heads"]) -> Shaped[Tensor, "..."]:
        """A value for each head, at these cells."""

    @abstractmethod
    def of_place(self, values: Shaped[Tensor, "batch length"], place: Int[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """A value for each place of each sequence, at these cells."""

    @abstractmethod
    def of_query(
        self, values: Shaped[Tensor, "batch heads query choices"], choice: Int[Tensor, "..."]
    ) -> Shaped[Tensor, "..."]:
        """One of the values of each query that is looked at, chosen for each of these cells."""

    @abstractmethod
    def of_cell(self, values: Shaped[Tensor, "#batch #heads #query #key"]) -> Shaped[Tensor, "..."]:
        """A value for each cell of the whole call, at these cells."""


@final
class Cells(Places):
    """All cells of the scores at once."""

    def __init__(self, extent: Extent) -> None:
        self.extent = extent

    @property
    def batch(self) -> Int[Tensor, "batch 1 1 1"]:  # type: ignore[override]
        return torch.arange(self.extent.batch, device=self.extent.device).view(-1, 1, 1, 1)

    @property
    def head(self) -> Int[Tensor, "1 heads 1 1"]:  # type: ignore[override]
        seen = self.extent.seen_heads
        return (torch.arange(self.extent.heads, device=self.extent.device) if seen is None else seen).view(1, -1, 1, 1)

    @property
    def query(self) -> Int[Tensor, "1 1 query 1"]:  # type: ignore[override]
        seen = self.extent.seen_queries
        row = torch.arange(self.extent.queries, device=self.extent.device) if seen is None else seen
        return row.view(1, 1, -1, 1)

    @property
    def place(self) -> Int[Tensor, "#batch 1 query 1"]:  # type: ignore[override]
        return self.query + self._everywhere(self.extent.first_place)

    @property
    def step(self) -> Int[Tensor, "#batch 1 query 1"]:  # type: ignore[override]
        return self.query if self.extent.start is None else self.query + self._everywhere(self.extent.start)

    @property
    def key(self) -> Int[Tensor, "1 1 1 key"]:  # type: ignore[override]
        return torch.arange(self.extent.keys, device=self.extent.device).view(1, 1, 1, -1)

    def of_batch(self, values: Shaped[Tensor, "*batch"]) -> Shaped[Tensor, "#batch 1 1 1"]:
        return values.to(self.extent.device).view(-1, 1, 1, 1)

    def of_head(self, values: Shaped[Tensor, "heads"]) -> Shaped[Tensor, "1 seen 1 1"]:
        return values[self.head]

    def of_place(self, values: Shaped[Tensor, "batch length"], place: Int[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        if values.shape != (self.extent.batch, self.extent.keys):
            raise ShapeError(
                f"a mask names something at {list(values.shape)} places, but there are "
                f"{[self.extent.batch, self.extent.keys]} keys [batch, key]"
            )
        return values.to(self.extent.device)[self.batch, place]

    def of_query(
        self, values: Shaped[Tensor, "batch heads query choices"], choice: Int[Tensor, "..."]
    ) -> Shaped[Tensor, "batch heads query key"]:
        return values.gather(-1, choice.expand(*values.shape[:3], self.extent.keys))

    def of_cell(self, values: Shaped[Tensor, "#batch #heads #query #key"]) -> Shaped[Tensor, "..."]:
        heads, queries = self.extent.seen_heads, self.extent.seen_queries
        if heads is not None and values.shape[1] > 1:
            values = values[:, heads]
        if queries is not None and values.shape[2] > 1:
            values = values[:, :, queries]
        return values

    def _everywhere(self, values: int | Int[Tensor, "*batch"]) -> int | Int[Tensor, "#batch 1 1 1"]:
        return values if isinstance(values, int) else self.of_batch(values)
