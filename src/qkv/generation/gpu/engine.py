"""The decoding engine on GPUs.

Recorded steps are kept for the next call: rows are rounded up to powers of two, and so are the lengths of their caches.
It decodes jobs of any size, so that results do not depend on the size. The first decoding compiles the kernels, in 7 s
with GPT-2 124M on one H200, and in about 5 s more for other numbers of rows; Triton keeps them on disk for later
processes.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar, cast

from qkv.generation.beam_batching import BeamDecoder
from qkv.generation.continuous_batching import TokenDecoder
from qkv.generation.decode import GenerationConfig
from qkv.generation.engine import Engine, SpeculativeConfig
from qkv.generation.gpu.gpu_stack import record_graph
from qkv.generation.gpu.runner import GreedySteps
from qkv.generation.gpu.speculative_steps import SpeculativeSteps, StaticAssistant, StaticDraft, StaticLookup
from qkv.generation.requests import Request, Result, Tokens
from qkv.generation.runner import GuessRunner, RunnerFactory
from qkv.generation.speculative import PromptLookup
from qkv.generation.static_steps import BeamSteps, StaticBeamDecoder, StaticSteps, StaticTokenDecoder, TokenSteps

MIN_CAPACITY = 64
KEPT = 4  # recordings
Key = tuple[object, ...]
Item = TypeVar("Item")


class GPUEngine(Engine):
    """Decodes requests on a GPU."""

    max_cache_bytes = 2**32

    def __init__(self, factory: RunnerFactory) -> None:
        super().__init__(factory)
        self._idle: list[tuple[Key, StaticSteps]] = []

    def _decode(
        self,
        requests: Sequence[Request],
        tokens: Tokens,
        config: GenerationConfig,
        batch_size: int | None,
        speculative: SpeculativeConfig | None,
    ) -> Iterator[Result]:
        key, steps = self._borrow(requests, tokens, config, batch_size, speculative)
        queue = deque(enumerate(requests))
        decoder: TokenDecoder | BeamDecoder
        if isinstance(steps, TokenSteps):
            decoder = StaticTokenDecoder(steps, queue, tokens, config)
        else:
            assert isinstance(steps, BeamSteps)
            decoder = StaticBeamDecoder(steps, queue, tokens, config)
        return self._returning(key, steps, decoder.run())

    def _stream(
        self, request: Request, tokens: Tokens, config: GenerationConfig, speculative: SpeculativeConfig | None
    ) -> Iterator[int]:
        key, steps = self._borrow([request], tokens, config, 1, speculative)
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
        self,
        requests: Sequence[Request],
        tokens: Tokens,
        config: GenerationConfig,
        batch_size: int | None,
        speculative: SpeculativeConfig | None,
    ) -> tuple[Key, StaticSteps]:
        """Return recorded steps that nobody uses; results are generated lazily, so two calls may overlap."""
        sampling = config.sampling
        beams, copies = config.rows_per_request
        guesses = 0 if speculative is None else speculative.tokens
        width = beams + guesses  # rows of a request
        capacity = _bucket(max(request.capacity for request in requests) + guesses)
        source_capacity = max(request.source_length for request in requests)
        source_capacity = _bucket(source_capacity) if source_capacity else 0
        slots = self._slots(len(requests) * copies, width, capacity, source_capacity, batch_size)
        search: Key = (beams, config.length_penalty, config.exact) if beams > 1 else ()
        if sampling is not None and sampling.temperature > 0:
            search = (sampling.temperature, sampling.top_k, sampling.top_p)
        special = (tokens.end, tuple(tokens.suppressed), tokens.vocab_size, tokens.grammar)
        key = (slots, capacity, source_capacity, speculative, special, *search)
        for number, (other, steps) in enumerate(self._idle):
            if other == key:
                self._idle.pop(number)
                return key, steps
        runner = self.factory.make(slots * width, capacity, slots if self.factory.has_source else 0, source_capacity)
        if speculative is not None:
            draft = self._draft(speculative, slots, capacity)
            steps = SpeculativeSteps(cast(GuessRunner, runner), tokens, config, capacity, draft, guesses)
        else:
            plain = not search and tokens.grammar is None
            steps_class = BeamSteps if beams > 1 else GreedySteps if plain else TokenSteps
            steps = steps_class(tokens.constrain(runner), tokens, config, capacity)
        steps.record(record_graph)
        return key, steps

    def _draft(self, speculative: SpeculativeConfig, slots: int, capacity: int) -> StaticDraft:
        draft = speculative.draft
        if isinstance(draft, PromptLookup):
            return StaticLookup(draft.max_ngram)
        return StaticAssistant(cast(GuessRunner, draft.factory.make(slots, capacity, 0, 0)))

    def _slots(self, wanted: int, width: int, capacity: int, source_capacity: int, batch_size: int | None) -> int:
        """Return how many requests are decoded at once."""
        if batch_size is not None:
            return min(batch_size, wanted)
        most = self.fitting(width, capacity, source_capacity)
        return min(_power_of_two(wanted), max(1, _power_of_two(most + 1) // 2))


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


def _bucket(length: int) -> int:
    return max(MIN_CAPACITY, _power_of_two(length))
