"""The decoding engine on GPUs.

Recorded steps are kept for the next call: rows are rounded up to powers of two, and so are the lengths of their caches.
It decodes jobs of any size, so that results do not depend on the size. The first decoding compiles the kernels, in 7 s
with GPT-2 124M on one H200, and in about 5 s more for other numbers of rows; Triton keeps them on disk for later
processes.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import nn

from qkv.errors import InputError
from qkv.generation.continuous_batching import BeamDecoder, Request, Result, TokenDecoder, Tokens
from qkv.generation.cpu.packed_stack import WeightType
from qkv.generation.decode import GenerationConfig
from qkv.generation.decoder_stack import decoder_stack, encoder_stack
from qkv.generation.engine import Engine
from qkv.generation.gpu.runner import GPURunner, GreedySteps, record_graph
from qkv.generation.gpu.weights import GPUWeights
from qkv.generation.speculative import PromptLookup
from qkv.generation.static_steps import BeamSteps, StaticBeamDecoder, StaticSteps, StaticTokenDecoder, TokenSteps
from qkv.models.transformer import Transformer
from qkv.runtime.memory import free_memory
from qkv.types import Float, Int, Tensor

MAX_ROWS = 5120  # sequences decoded at once by default, beams counted
MAX_CACHE_BYTES = 2**32
MIN_CAPACITY = 64
KEPT = 4  # recordings
Key = tuple[object, ...]
Item = TypeVar("Item")


class GPUEngine(Engine):
    """Decodes requests on a GPU."""

    def __init__(self, model: nn.Module, dtype: WeightType) -> None:
        device = next(model.parameters()).device
        self._weights = GPUWeights(decoder_stack(model), dtype, device)
        self._model = model if isinstance(model, Transformer) else None
        if self._model is not None:
            encoder_stack(self._model)  # raises if it is unsupported
        self._idle: list[tuple[Key, StaticSteps]] = []

    @property
    def description(self) -> str:
        return f"GPU kernels ({torch.cuda.get_device_name(self._weights.device)}), {self._weights.dtype} weights"

    @property
    def vocab_size(self) -> int:
        assert self._weights.stack.readout is not None
        return self._weights.stack.readout.outputs

    def _decode(
        self,
        requests: Sequence[Request],
        tokens: Tokens,
        config: GenerationConfig,
        batch_size: int | None,
        draft: Engine | PromptLookup | None,
        draft_tokens: int,
    ) -> Iterator[Result]:
        _refuse_draft(draft)
        key, steps = self._borrow(requests, tokens, config, batch_size)
        queue = deque(enumerate(requests))
        decoder: TokenDecoder | BeamDecoder
        if isinstance(steps, TokenSteps):
            decoder = StaticTokenDecoder(steps, queue, tokens, config)
        else:
            assert isinstance(steps, BeamSteps)
            decoder = StaticBeamDecoder(steps, queue, tokens, config)
        return self._returning(key, steps, decoder.run())

    def _stream(
        self,
        request: Request,
        tokens: Tokens,
        config: GenerationConfig,
        draft: Engine | PromptLookup | None,
        draft_tokens: int,
    ) -> Iterator[int]:
        _refuse_draft(draft)
        key, steps = self._borrow([request], tokens, config, 1)
        assert isinstance(steps, TokenSteps)
        decoder = StaticTokenDecoder(steps, deque([(0, request)]), tokens, config)
        return self._returning(key, steps, decoder.stream())

    def _returning(self, key: Key, steps: StaticSteps, results: Iterator[Item]) -> Iterator[Item]:
        """Yield results, then keep the steps for the next call."""
        try:
            yield from results
        finally:
            self._idle = [*self._idle, (key, steps)][-KEPT:]

    def _borrow(
        self, requests: Sequence[Request], tokens: Tokens, config: GenerationConfig, batch_size: int | None
    ) -> tuple[Key, StaticSteps]:
        """Return recorded steps that nobody uses; results are generated lazily, so two calls may overlap."""
        sampling = config.sampling
        beams, copies = (config.num_beams, 1) if sampling is None else (1, config.num_return_sequences)
        capacity = _bucket(max(len(request.prompt) + request.max_new_tokens + 1 for request in requests))
        source_capacity = _bucket(max(len(request.source or ()) for request in requests)) if self._model else 0
        slots = self._slots(len(requests) * copies, beams, capacity, source_capacity, batch_size)
        search: Key = (beams, config.length_penalty, config.exact) if beams > 1 else ()
        if sampling is not None and sampling.temperature > 0:
            search = (sampling.temperature, sampling.top_k, sampling.top_p)
        key = (slots, capacity, source_capacity, tokens.end, tuple(tokens.suppressed), tokens.vocab_size, *search)
        for number, (other, steps) in enumerate(self._idle):
            if other == key:
                self._idle.pop(number)
                return key, steps
        runner = GPURunner(
            self._weights,
            None if self._model is None else self._encode,
            rows=slots * beams,
            capacity=capacity,
            sources=0 if self._model is None else slots,
            source_capacity=source_capacity,
        )
        steps_class = BeamSteps if beams > 1 else TokenSteps if search else GreedySteps
        steps = steps_class(runner, tokens, config, capacity)
        steps.record(record_graph)
        return key, steps

    def _slots(self, wanted: int, beams: int, capacity: int, source_capacity: int, batch_size: int | None) -> int:
        """Return how many requests are decoded at once."""
        if batch_size is not None:
            return min(batch_size, wanted)
        stack, device = self._weights.stack, self._weights.device
        per_token = 2 * len(stack.layers) * stack.dim * self._weights.compute.itemsize
        budget = min(MAX_CACHE_BYTES, (free_memory(device) or 0) // 4)
        most = min(MAX_ROWS // beams, budget // (per_token * (beams * capacity + source_capacity)))
        return min(_power_of_two(wanted), max(1, _power_of_two(most + 1) // 2))

    @torch.no_grad()
    def _encode(
        self, ids: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch source dim"]:
        assert self._model is not None
        half = self._weights.compute == torch.bfloat16 and next(self._model.parameters()).dtype == torch.float32
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            return self._model.encode(ids, lengths).hidden


def _refuse_draft(draft: Engine | PromptLookup | None) -> None:
    if draft is not None:
        raise InputError("speculative decoding is not implemented on GPUs: decode without a draft")


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


def _bucket(length: int) -> int:
    return max(MIN_CAPACITY, _power_of_two(length))
