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
    seen_heads: tuple[int, ...] | None = None  # which heads and queries of a call these are,
    seen_queries: tuple[int, ...] | None = None  # where not all of them are looked at,
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

    def of(self, heads: tuple[int, ...] | None, queries: tuple[int, ...] | None) -> "Extent":
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
        return _numbers(self.extent.seen_heads, self.extent.heads, self.extent.device).view(1, -1, 1, 1)

    @property
    def query(self) -> Int[Tensor, "1 1 query 1"]:  # type: ignore[override]
        return _numbers(self.extent.seen_queries, self.extent.queries, self.extent.device).view(1, 1, -1, 1)

    @property
    def place(self) -> Int[Tensor, "#batch 1 query 1"]:  # type: ignore[override]
        first = self._everywhere(self.extent.first_place)
        return self.query if isinstance(first, int) and first == 0 else self.query + first

    @property
    def step(self) -> Int[Tensor, "#batch 1 query 1"]:  # type: ignore[override]
        return self.query if self.extent.start is None else self.query + self._everywhere(self.extent.start)

    @property
    def key(self) -> Int[Tensor, "1 1 1 key"]:  # type: ignore[override]
        return torch.arange(self.extent.keys, device=self.extent.device).view(1, 1, 1, -1)

    def of_batch(self, values: Shaped[Tensor, "*batch"]) -> Shaped[Tensor, "#batch 1 1 1"]:
        self._check_batch(values)
        return values.to(self.extent.device).view(-1, 1, 1, 1)

    def of_head(self, values: Shaped[Tensor, "heads"]) -> Shaped[Tensor, "1 seen 1 1"]:
        return values[self.head]

    def of_place(self, values: Shaped[Tensor, "batch length"], place: Int[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        self._check_places(values)
        if values.shape[1] == 0:  # no keys, and no cell to have a value
            return values.new_zeros(torch.broadcast_shapes(self.batch.shape, place.shape), device=self.extent.device)
        return values.to(self.extent.device)[self.batch, place]

    def of_query(
        self, values: Shaped[Tensor, "batch heads query choices"], choice: Int[Tensor, "..."]
    ) -> Shaped[Tensor, "batch heads query key"]:
        return values.gather(-1, choice.expand(*values.shape[:3], self.extent.keys))

    def of_cell(self, values: Shaped[Tensor, "#batch #heads #query #key"]) -> Shaped[Tensor, "..."]:
        values = values.to(self.extent.device)
        for dim, numbers in ((1, self.extent.seen_heads), (2, self.extent.seen_queries)):
            values = values if values.shape[dim] == 1 else pick(values, dim, numbers)
        return values

    def _everywhere(self, values: int | Int[Tensor, "*batch"]) -> int | Int[Tensor, "#batch 1 1 1"]:
        return values if isinstance(values, int) else self.of_batch(values)

    def _check_batch(self, values: Shaped[Tensor, "*batch"]) -> None:
        """Raise where there is not one value, nor one for each row of the batch."""
        if values.ndim > 1 or (values.ndim == 1 and values.shape[0] != 1 and values.shape[0] != self.extent.batch):
            raise ShapeError(
                f"a mask or a start has values of shape {list(values.shape)}, one for each row of a batch, "
                f"which does not broadcast to scores of shape {list(self.extent[:4])} [batch, heads, query, key]"
            )

    def _check_places(self, values: Shaped[Tensor, "batch length"]) -> None:
        """Raise where there is not a value for each key."""
        if values.shape != (self.extent.batch, self.extent.keys):
            raise ShapeError(
                f"a mask names something at {list(values.shape)} places, but there are "
                f"{[self.extent.batch, self.extent.keys]} keys [batch, key]"
            )


def pick(x: Shaped[Tensor, "..."], dim: int, numbers: tuple[int, ...] | None) -> Shaped[Tensor, "..."]:
    """What stands at the given numbers of a dimension, None for all of them: a view, where they follow each other."""
    if numbers is None:
        return x
    if _follow_each_other(numbers):
        return x.narrow(dim, numbers[0], len(numbers))
    return x.index_select(dim, indices(numbers, x.device))


def indices(numbers: tuple[int, ...], device: torch.device) -> Int[Tensor, "numbers"]:
    """The numbers as a tensor, made on the device itself: a copy from the host could be part of no CUDA graph."""
    if _follow_each_other(numbers):
        return torch.arange(numbers[0], numbers[0] + len(numbers), device=device)
    return torch.cat([torch.arange(number, number + 1, device=device) for number in numbers])


def _numbers(seen: tuple[int, ...] | None, count: int, device: torch.device) -> Int[Tensor, "numbers"]:
    return torch.arange(count, device=device) if seen is None else indices(seen, device)


def _follow_each_other(numbers: tuple[int, ...]) -> bool:
    return numbers == tuple(range(numbers[0], numbers[0] + len(numbers)))
