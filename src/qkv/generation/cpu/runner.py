"""Rows of a batch on the CPU: sources, cached tokens, and one call of the kernels per step."""

from collections.abc import Sequence

import torch

from qkv.generation.cpu.packed_stack import PackedStack, log_sum_exp, top_k
from qkv.generation.runner import Runner
from qkv.types import Float, Int, Tensor


class CPURunner(Runner):
    """Decodes rows of tokens with packed weights."""

    def __init__(
        self,
        decoder: PackedStack,
        encoder: PackedStack | None,
        *,
        rows: int,
        capacity: int,
        sources: int = 0,
        source_capacity: int = 0,
    ) -> None:
        self.decoder, self.encoder = decoder, encoder
        self.rows, self.capacity = rows, capacity
        self.vocab_size, self.device = decoder.vocab_size, torch.device("cpu")
        self.cache = decoder.cache(rows, capacity)
        self.memory = decoder.cache(sources, source_capacity) if sources else None
        self.lengths = torch.zeros(rows, dtype=torch.int32)  # cached tokens of each row
        self.source_of = torch.zeros(rows, dtype=torch.int32)

    def encode(self, sources: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        assert self.encoder is not None
        counts = torch.tensor([len(text) for text in ids], dtype=torch.int32)
        rows = torch.arange(len(ids), dtype=torch.int32).repeat_interleave(counts)
        positions = torch.cat([torch.arange(len(text), dtype=torch.int32) for text in ids])
        tokens = torch.tensor([token for text in ids for token in text], dtype=torch.int32)
        scratch = self.encoder.cache(len(ids), int(counts.max()))
        hidden, _ = self.encoder.run(tokens, rows, positions, counts.repeat_interleave(counts), scratch)
        self.set_memory(sources, hidden, counts)

    def set_memory(
        self, sources: Sequence[int], hidden: Float[Tensor, "tokens dim"], counts: Int[Tensor, "sources"]
    ) -> None:
        """Keep the keys and values of encoded sources, given one after another without padding."""
        assert self.memory is not None
        numbers = torch.tensor(sources, dtype=torch.int32)
        self.memory.lengths[numbers.long()] = counts.int()
        positions = torch.cat([torch.arange(count, dtype=torch.int32) for count in counts.tolist()])
        self.decoder.add_memory(hidden, numbers.repeat_interleave(counts), positions, self.memory)

    def reset(self, rows: Sequence[int], sources: Sequence[int] = ()) -> None:
        index = torch.tensor(rows)
        self.lengths[index] = 0
        self.cache.table[index] = index.int()[:, None]
        if sources:
            self.source_of[index] = torch.tensor(sources, dtype=torch.int32)

    def reorder(self, rows: Int[Tensor, "rows"], parents: Int[Tensor, "rows"]) -> None:
        """Copy rows of the table; the cache itself is not moved."""
        longest = int(self.lengths[parents].max())
        self.cache.table[rows, :longest] = self.cache.table[parents, :longest]
        self.lengths[rows] = self.lengths[parents]

    def step(self, rows: Int[Tensor, "rows"], tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocabulary"]:
        index = rows.int()
        positions = self.lengths[rows].clamp(max=self.capacity - 1)
        self.cache.table[rows, positions.long()] = index
        logits = self._run(tokens.int(), index, positions, torch.arange(len(rows), dtype=torch.int32))
        self.lengths[rows] = positions + 1
        return logits

    def extend(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], wanted: Sequence[int] | None = None
    ) -> Float[Tensor, "positions vocabulary"]:
        counts = torch.tensor([len(row) for row in tokens])
        index = torch.tensor(rows, dtype=torch.int32)
        starts = self.lengths[index.long()]
        positions = torch.cat(
            [torch.arange(len(row), dtype=torch.int32) + start for start, row in zip(starts, tokens, strict=False)]
        )
        row_of = index.repeat_interleave(counts)
        self.cache.table[row_of.long(), positions.long()] = row_of
        ids = torch.tensor([token for row in tokens for token in row], dtype=torch.int32)
        ends = counts.cumsum(0).int()
        if wanted is None:
            indices = ends - 1
        else:
            parts = zip(ends.tolist(), wanted, strict=True)
            indices = torch.cat([torch.arange(end - count, end, dtype=torch.int32) for end, count in parts])
        logits = self._run(ids, row_of, positions, indices)
        self.lengths[index.long()] += counts.int()
        return logits

    def truncate(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        self.lengths[torch.tensor(rows)] = torch.tensor(lengths, dtype=torch.int32)

    def log_sum_exp(self, logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows"]:
        return log_sum_exp(logits)

    def top_k(
        self, values: Float[Tensor, "rows vocabulary"], k: int
    ) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
        return top_k(values, k)

    def _run(
        self,
        ids: Int[Tensor, "tokens"],
        rows: Int[Tensor, "tokens"],
        positions: Int[Tensor, "tokens"],
        wanted: Int[Tensor, "wanted"],
    ) -> Float[Tensor, "wanted vocabulary"]:
        memory_rows = self.source_of[rows.long()] if self.memory is not None else None
        _, logits = self.decoder.run(
            ids, rows, positions, positions + 1, self.cache, wanted=wanted, memory=self.memory, memory_rows=memory_rows
        )
        assert logits is not None
        return logits
