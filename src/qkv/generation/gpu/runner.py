"""Rows of a batch on a GPU: sources, cached tokens, and decoding steps in CUDA graphs."""

from collections.abc import Callable, Sequence

import torch
import triton
from torch import nn

from qkv.errors import Unsupported
from qkv.generation.decode import GenerationConfig
from qkv.generation.decoder_stack import WeightType, decoder_stack, encoder_stack
from qkv.generation.gpu import kernels
from qkv.generation.gpu.gpu_stack import GPUStack, launch_options
from qkv.generation.gpu.weights import GPUWeights
from qkv.generation.requests import Tokens
from qkv.generation.runner import GuessRunner, Runner, RunnerFactory
from qkv.generation.state_runner import StateRunner, StateRunnerFactory, runs_own_steps
from qkv.generation.static_steps import NOT_END, TokenSteps
from qkv.models.transformer import Transformer
from qkv.types import Float, Int, Tensor

SELECT_BLOCK = 2048  # tokens per program of the selection
NORMALIZER_BLOCK = 4096
TOP_BLOCK = 1024
MOST_FAST_TOP = 32  # more of the largest values are found by `torch.topk`
MOST_PREFILLED = 2**16  # tokens at once
MAX_ROWS = 5120  # decoded at once by default
Encode = Callable[[Tensor, Tensor], Tensor]  # padded token ids and lengths -> hidden states


class GPUSelection(Runner):
    """Selects tokens with Triton kernels."""

    def log_sum_exp(self, logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows"]:
        out = torch.empty(len(logits), device=self.device)
        kernels.log_sum_exp[(len(logits),)](
            logits, out, VOCAB=logits.shape[1], BLOCK=NORMALIZER_BLOCK, num_warps=8, **launch_options(self.device)
        )
        return out

    def top_k(
        self, values: Float[Tensor, "rows vocabulary"], k: int
    ) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
        rows, vocab_size = values.shape
        if k > MOST_FAST_TOP:
            return super().top_k(values, k)
        parts = triton.cdiv(vocab_size, TOP_BLOCK)
        tops = torch.empty(rows, parts * k, device=self.device)
        indices = torch.empty(rows, parts * k, dtype=torch.long, device=self.device)
        kernels.top_k_parts[(parts, rows)](
            values, tops, indices, VOCAB=vocab_size, PARTS=parts, K=k, BLOCK=TOP_BLOCK, num_warps=4,
            **launch_options(self.device),
        )  # fmt: skip
        top, ranks = tops.topk(k)
        return top, indices.gather(1, ranks)


class GPUStateRunner(GPUSelection, StateRunner):
    """Decodes rows by the `step` of a model, and selects tokens with Triton kernels."""


class GPURunner(GPUSelection, GuessRunner):
    """Decodes rows of tokens on a GPU; `encode` is the encoder of encoder-decoders."""

    def __init__(
        self,
        weights: GPUWeights,
        encode: Encode | None = None,
        *,
        rows: int,
        capacity: int,
        sources: int = 0,
        source_capacity: int = 0,
    ) -> None:
        self.stack = GPUStack(weights, rows, capacity, sources, source_capacity)
        self.rows, self.vocab_size, self.device = rows, self.stack.vocab_size, self.stack.device
        self.lengths = torch.zeros(rows, dtype=torch.int32, device=self.device)  # cached tokens of each row
        self._encode = encode

    @torch.no_grad()
    def encode(self, sources: Sequence[int], inputs: Sequence[Sequence[int]]) -> None:
        assert self._encode is not None
        counts = torch.tensor([len(text) for text in inputs])
        longest = int(counts.max())
        padded = torch.tensor([[*text, *[0] * (longest - len(text))] for text in inputs]).to(self.device)
        lengths = counts.to(self.device)
        self.stack.set_memory(sources, self._encode(padded, lengths), lengths)

    def reset(self, rows: Sequence[int], sources: Sequence[int] = ()) -> None:
        index = self._index(rows)
        self.lengths[index] = 0
        self.stack.table[index] = index.int()[:, None]
        if sources:
            self.stack.memory_of[index] = self._index(sources).int()

    def reorder(self, rows: Int[Tensor, "rows"], parents: Int[Tensor, "rows"]) -> None:
        """Copy rows of the table; the cache itself is not copied."""
        self.stack.table[rows] = self.stack.table[parents]
        self.lengths[rows] = self.lengths[parents]

    def step_all(self, tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocabulary"]:
        logits = self.stack.step(tokens, self.lengths)
        self.lengths += 1
        return logits

    def step(self, rows: Int[Tensor, "rows"], tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Other rows take part with a token that their next one overwrites."""
        index, ids = rows.to(self.device), torch.zeros_like(self.lengths)
        ids[index] = tokens.to(self.device, torch.int32)
        logits = self.stack.step(ids, self.lengths)[index]
        self.lengths[index] += 1
        return logits

    def step_guesses(self, tokens: Int[Tensor, "slots width"]) -> Float[Tensor, "rows vocabulary"]:
        """Row j of a slot runs token j, and all rows of the slot read its keys and values."""
        slots, width = tokens.shape
        positions = self.lengths.view(slots, width) + torch.arange(width, dtype=torch.int32, device=self.device)
        where = positions.clamp(max=self.stack.table.shape[1] - 1).long()[:, None].expand(-1, width, -1)
        rows = torch.arange(self.rows, dtype=torch.int32, device=self.device).view(slots, 1, width)
        self.stack.table.view(slots, width, -1).scatter_(2, where, rows.expand(-1, width, -1))
        return self.stack.step(tokens.flatten(), positions.flatten(), shared=True)

    def advance(self, counts: Int[Tensor, "slots"]) -> None:
        self.lengths.view(len(counts), -1).add_(counts[:, None])

    def prefill(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        longest = max((len(text) for text in tokens), default=0)
        some = max(1, MOST_PREFILLED // max(1, longest))
        for begin in range(0, len(rows), some):
            self.stack.prefill(rows[begin : begin + some], tokens[begin : begin + some])
        lengths = torch.tensor([len(text) for text in tokens], dtype=torch.int32, device=self.device)
        self.lengths[self._index(rows)] = lengths

    def truncate(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        self.lengths[self._index(rows)] = torch.tensor(lengths, dtype=self.lengths.dtype, device=self.device)

    def extend(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], wanted: Sequence[int] | None = None
    ) -> Float[Tensor, "positions vocabulary"]:
        assert wanted is None or max(wanted) == 1, "several logits of a row are computed by step_guesses"
        index = self._index(rows)
        empty = (self.lengths[index] == 0).tolist()
        new = [(row, text[:-1]) for row, text, is_empty in zip(rows, tokens, empty, strict=True) if is_empty]
        self.prefill([row for row, _ in new], [text for _, text in new])
        rest = [text[-1:] if is_empty else text for text, is_empty in zip(tokens, empty, strict=True)]
        logits = torch.zeros(len(rows), self.vocab_size, device=self.device)
        for offset in range(max(len(text) for text in rest)):
            some = [number for number, text in enumerate(rest) if offset < len(text)]
            logits[some] = self.step(index[some], torch.tensor([rest[number][offset] for number in some]))
        return logits

    def _index(self, numbers: Sequence[int]) -> Int[Tensor, "numbers"]:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)


class GreedySteps(TokenSteps):
    """Greedy search on a GPU: selects all tokens and advances all rows in two launches."""

    def __init__(self, runner: Runner, tokens: Tokens, config: GenerationConfig, length: int) -> None:
        super().__init__(runner, tokens, config, length)
        rows, device = runner.rows, runner.device
        self._parts = triton.cdiv(runner.vocab_size, SELECT_BLOCK)
        self._tops, self._highest, self._sums = (torch.zeros(rows, self._parts, device=device) for _ in range(3))
        self._indices = torch.zeros(rows, self._parts, dtype=torch.int32, device=device)

    def step(self) -> None:
        logits = self.runner.step_all(self.token)
        end, (rows, vocab_size) = -1 if self.end is None else self.end, logits.shape
        active = self.active.view(torch.int8)
        blocked = None if self.blocked is None else self.blocked.view(torch.int8)
        kernels.select_parts[(self._parts, rows)](
            logits, blocked, self.plan, self.plan.shape[1], self.steps, self._tops, self._indices, self._highest,
            self._sums, END=end, NOT_END=NOT_END, VOCAB=vocab_size, PARTS=self._parts, BLOCK=SELECT_BLOCK, num_warps=8,
            **launch_options(self.runner.device),
        )  # fmt: skip
        kernels.select[(rows,)](
            self._tops, self._indices, self._highest, self._sums, logits, self.plan, self.plan.shape[1], self.steps,
            self.limits, active, self.token, self.totals, END=end, VOCAB=vocab_size, PARTS=self._parts,
            BLOCK=triton.next_power_of_2(self._parts), num_warps=1, **launch_options(self.runner.device),
        )  # fmt: skip


class GPURunnerFactory(RunnerFactory):
    """The weights of a Transformer stack on a GPU; the encoder of an encoder-decoder runs in PyTorch."""

    max_rows = MAX_ROWS

    def __init__(self, model: nn.Module, dtype: WeightType) -> None:
        self.device = next(model.parameters()).device
        self._weights = GPUWeights(decoder_stack(model), dtype, self.device)
        self._model = model if isinstance(model, Transformer) else None
        self.has_source = self._model is not None
        if self._model is not None or self._weights.stack.has_cross_attention:
            encoder_stack(model)  # raises if it is unsupported
        assert self._weights.stack.readout is not None
        self.vocab_size = self._weights.stack.readout.outputs
        self.description = f"GPU kernels ({torch.cuda.get_device_name(self.device)}), {dtype} weights"

    def make(self, rows: int, capacity: int, sources: int, source_capacity: int) -> GPURunner:
        return GPURunner(
            self._weights,
            None if self._model is None else self._encode,
            rows=rows,
            capacity=capacity,
            sources=sources,
            source_capacity=source_capacity,
        )

    def cache_bytes(self, rows: int, capacity: int, source_capacity: int) -> int:
        stack = self._weights.stack
        per_token = 2 * len(stack.layers) * stack.dim * self._weights.compute.itemsize
        return per_token * (rows * capacity + source_capacity)

    @torch.no_grad()
    def _encode(
        self, ids: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch source dim"]:
        assert self._model is not None
        half = self._weights.compute == torch.bfloat16 and next(self._model.parameters()).dtype == torch.float32
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            return self._model.encode(ids, lengths).hidden


def gpu_factory(model: nn.Module, dtype: WeightType) -> RunnerFactory:
    """Prepare a model for decoding on a GPU; raise `Unsupported` if that is not implemented."""
    if not runs_own_steps(model):
        return GPURunnerFactory(model, dtype)
    factory = StateRunnerFactory(model, MAX_ROWS, GPUStateRunner)
    if dtype not in factory.description:
        raise Unsupported("fast decoding", f"{dtype} weights of {type(model).__name__} on a GPU")
    return factory
