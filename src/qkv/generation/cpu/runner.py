"""Rows of a batch on the CPU: sources, cached tokens, and one call of the kernels per step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from qkv.generation.cpu.library import FEATURES, features
from qkv.generation.cpu.packed_stack import PackedStack, log_sum_exp, sample_tokens, top_k
from qkv.generation.cpu.packed_weights import PackedWeights
from qkv.generation.decoder_stack import WeightType, decoder_stack, encoder_stack
from qkv.generation.runner import Runner, RunnerFactory
from qkv.generation.sampling import Sampling
from qkv.generation.state_runner import StateRunner, StateRunnerFactory, runs_own_steps
from qkv.models.transformer import Transformer
from qkv.models.whisper import Whisper
from qkv.nn.quantized import is_quantized
from qkv.types import Float, Int, Tensor

MAX_STATE_ROWS = 320  # a recurrent step has a few small operations, whose cost is shared by the rows


class CPUSelection(Runner):
    """Selects tokens with the CPU kernels."""

    def log_sum_exp(self, logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows"]:
        return log_sum_exp(logits)

    def top_k(
        self, values: Float[Tensor, "rows vocabulary"], k: int
    ) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
        return top_k(values, k)

    def sample(
        self, log_p: Float[Tensor, "rows vocabulary"], sampling: Sampling, uniform: Float[Tensor, "rows"]
    ) -> Int[Tensor, "rows"]:
        tokens = sample_tokens(log_p, sampling, uniform)
        return super().sample(log_p, sampling, uniform) if tokens is None else tokens


class CPUStateRunner(CPUSelection, StateRunner):
    """Decodes rows by the `step` of a model, and selects tokens with the CPU kernels."""


class CPURunner(CPUSelection):
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

    def encode(self, sources: Sequence[int], inputs: Sequence[Sequence[int]]) -> None:
        assert self.encoder is not None
        counts = torch.tensor([len(text) for text in inputs], dtype=torch.int32)
        rows = torch.arange(len(inputs), dtype=torch.int32).repeat_interleave(counts)
        positions = torch.cat([torch.arange(len(text), dtype=torch.int32) for text in inputs])
        tokens = torch.tensor([token for text in inputs for token in text], dtype=torch.int32)
        scratch = self.encoder.cache(len(inputs), int(counts.max()))
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


class WhisperRunner(CPURunner):
    """Decodes Whisper with packed weights; its encoder, which runs once per window, is PyTorch's."""

    def __init__(self, model: Whisper, decoder: PackedStack, *, rows: int, capacity: int, sources: int) -> None:
        positions = model.config.positions
        super().__init__(decoder, None, rows=rows, capacity=capacity, sources=sources, source_capacity=positions)
        self._model = model

    def encode(self, sources: Sequence[int], inputs: Sequence[Any]) -> None:
        hidden = self._model.encode(torch.stack(list(inputs))).hidden.float()
        self.set_memory(sources, hidden.flatten(0, 1), torch.full((len(inputs),), hidden.shape[1]))


class CPURunnerFactory(RunnerFactory):
    """Packs the weights of a Transformer stack for the CPU kernels."""

    max_rows = 128
    batch_invariant = True  # the kernels compute each row in the same order

    def __init__(self, model: nn.Module, dtype: WeightType) -> None:
        self._decoder = PackedStack(decoder_stack(model), dtype)
        self._encoder = PackedStack(encoder_stack(model), dtype) if isinstance(model, Transformer) else None
        self.vocab_size, self.device = self._decoder.vocab_size, torch.device("cpu")
        self._whisper = model if isinstance(model, Whisper) else None
        self.has_source = self._encoder is not None or self._whisper is not None
        sets = ", ".join(name for bit, name in FEATURES.items() if features() & bit) or "portable"
        self.description = f"CPU kernels ({sets}), {dtype} weights"

    def make(self, rows: int, capacity: int, sources: int, source_capacity: int) -> CPURunner:
        if self._whisper is not None:
            return WhisperRunner(self._whisper, self._decoder, rows=rows, capacity=capacity, sources=sources)
        return CPURunner(
            self._decoder,
            self._encoder,
            rows=rows,
            capacity=capacity,
            sources=sources,
            source_capacity=source_capacity,
        )

    def cache_bytes(self, rows: int, capacity: int, source_capacity: int) -> int:
        stack = self._decoder.stack
        source_capacity = source_capacity if self._whisper is None else self._whisper.config.positions
        per_token = 2 * len(stack.layers) * stack.kv_heads * stack.head_dim * (2 if self._decoder.half_cache else 4)
        return per_token * (rows * capacity + source_capacity)


def cpu_factory(model: nn.Module, dtype: WeightType) -> RunnerFactory:
    """Prepare a model for decoding on the CPU; raise `Unsupported` if that is not implemented."""
    if not runs_own_steps(model):
        return CPURunnerFactory(model, dtype)
    weight = next(model.parameters())
    if weight.dtype != torch.float32 or dtype == "float32" or is_quantized(model):
        return StateRunnerFactory(model, MAX_STATE_ROWS)  # not worth compiling the kernels
    return StateRunnerFactory(model, MAX_STATE_ROWS, CPUStateRunner, PackedWeights(model, dtype))
