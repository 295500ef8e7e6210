"""The decoding engine: packed weights, cached keys and values, and continuous batching for one model.

It runs GPT-2 and the Transformer on CPUs and CUDA devices, in the type of their weights unless told otherwise. Other
models, and terms that the kernels do not implement, are decoded by the simple searches (`generate`), with the same
results.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import nn

from qkv.attention.layers import attention_layers
from qkv.errors import InputError, Unsupported
from qkv.generation.continuous_batching import (
    Request,
    Result,
    Speculation,
    Tokens,
    decode_requests,
    stream_request,
)
from qkv.generation.cpu.library import FEATURES, features
from qkv.generation.cpu.packed_stack import PackedStack, WeightType
from qkv.generation.cpu.runner import CPURunner
from qkv.generation.decode import GenerationConfig
from qkv.generation.decoder_stack import decoder_stack, encoder_stack
from qkv.generation.speculative import AssistantModel, PromptLookup
from qkv.models.transformer import Transformer
from qkv.runtime.memory import free_memory, trim_heap

DType = Literal["auto", "float32", "bfloat16", "int8"]
MAX_ROWS = 128  # sequences decoded at once by default, beams counted
MAX_CACHE_BYTES = 2**30
DRAFT_TOKENS = 5  # guesses per step in speculative decoding


class Engine(ABC):
    """Decodes requests with one model; made by `Engine.build`."""

    @staticmethod
    def build(model: nn.Module, dtype: DType = "auto") -> "Engine":
        """Pack the weights of a model; raise `Unsupported` if it has no fast decoder on its device."""
        require_plain(model)
        device, decoder = next(model.parameters()).device, decoder_stack(model)
        trim_heap()  # what loading the model has freed, e.g. a parsed tokenizer.json
        weight_type = _weight_type(decoder.embed.weight.dtype) if dtype == "auto" else dtype
        if device.type == "cpu":
            encoder = PackedStack(encoder_stack(model), weight_type) if isinstance(model, Transformer) else None
            return CPUEngine(PackedStack(decoder, weight_type), encoder)
        if device.type != "cuda":
            raise Unsupported("fast decoding", f"the device {device}")
        if find_spec("triton") is None:
            raise Unsupported("fast decoding", "GPUs without Triton")
        from qkv.generation.gpu.engine import GPUEngine

        return GPUEngine(model, weight_type)

    @property
    @abstractmethod
    def description(self) -> str:
        """The kernels that run, e.g. "CPU kernels (AVX-512), bfloat16 weights"."""

    def decode(
        self,
        requests: Sequence[Request],
        tokens: Tokens,
        config: GenerationConfig,
        *,
        batch_size: int | None = None,
        draft: "Engine | PromptLookup | None" = None,
        draft_tokens: int = DRAFT_TOKENS,
    ) -> Iterator[Result]:
        """Yield (index, hypotheses) of each request as it is finished; at most `batch_size` are decoded at once.

        With `draft`, a smaller model or the prompt itself guesses up to `draft_tokens` tokens that this model checks in
        one pass; the results are the same.
        """
        if not requests:
            return iter(())
        # The longest first: a long request that starts last would keep a nearly empty batch busy.
        order = sorted(range(len(requests)), key=lambda index: -_expected_length(requests[index]))
        self._check_draft(draft, draft_tokens, config)
        ordered = [requests[index] for index in order]
        results = self._decode(ordered, tokens, config, batch_size, draft, draft_tokens)
        return ((order[index], hypotheses) for index, hypotheses in results)

    def stream(
        self,
        request: Request,
        tokens: Tokens,
        config: GenerationConfig,
        *,
        draft: "Engine | PromptLookup | None" = None,
        draft_tokens: int = DRAFT_TOKENS,
    ) -> Iterator[int]:
        """Yield the tokens of one request as they are generated."""
        self._check_draft(draft, draft_tokens, config)
        return self._stream(request, tokens, config, draft, draft_tokens)

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of tokens."""

    @abstractmethod
    def _decode(
        self,
        requests: Sequence[Request],
        tokens: Tokens,
        config: GenerationConfig,
        batch_size: int | None,
        draft: "Engine | PromptLookup | None",
        draft_tokens: int,
    ) -> Iterator[Result]:
        """Yield the results of requests, which start in this order."""

    @abstractmethod
    def _stream(
        self,
        request: Request,
        tokens: Tokens,
        config: GenerationConfig,
        draft: "Engine | PromptLookup | None",
        draft_tokens: int,
    ) -> Iterator[int]:
        """Yield the tokens of one request."""

    def _check_draft(self, draft: "Engine | PromptLookup | None", draft_tokens: int, config: GenerationConfig) -> None:
        if draft is None:
            return
        if config.num_beams > 1:
            raise InputError("speculative decoding supports greedy search and sampling only, not beam search")
        if draft_tokens < 1:
            raise InputError(f"draft_tokens must be at least 1, not {draft_tokens}")
        if isinstance(draft, Engine) and draft.vocab_size != self.vocab_size:
            raise InputError(
                f"the assistant has {draft.vocab_size:,} tokens and the model {self.vocab_size:,}: "
                "speculative decoding needs the same vocabulary"
            )


class CPUEngine(Engine):
    """Decodes requests on the CPU, with packed weights."""

    def __init__(self, decoder: PackedStack, encoder: PackedStack | None) -> None:
        self._decoder, self._encoder = decoder, encoder

    @property
    def description(self) -> str:
        sets = ", ".join(name for bit, name in FEATURES.items() if features() & bit) or "portable"
        return f"CPU kernels ({sets}), {self._decoder.dtype} weights"

    @property
    def vocab_size(self) -> int:
        return self._decoder.vocab_size

    def _decode(
        self,
        requests: Sequence[Request],
        tokens: Tokens,
        config: GenerationConfig,
        batch_size: int | None,
        draft: "Engine | PromptLookup | None",
        draft_tokens: int,
    ) -> Iterator[Result]:
        runner = self._runner(requests, config, batch_size, draft_tokens if draft is not None else 0)
        speculation = self._speculation(draft, draft_tokens, requests, config, runner.rows)
        return decode_requests(runner, requests, tokens, config, speculation)

    def _stream(
        self,
        request: Request,
        tokens: Tokens,
        config: GenerationConfig,
        draft: "Engine | PromptLookup | None",
        draft_tokens: int,
    ) -> Iterator[int]:
        runner = self._runner([request], config, 1, draft_tokens if draft is not None else 0)
        speculation = self._speculation(draft, draft_tokens, [request], config, 1)
        return stream_request(runner, request, tokens, config, speculation)

    def _speculation(
        self,
        draft: "Engine | PromptLookup | None",
        draft_tokens: int,
        requests: Sequence[Request],
        config: GenerationConfig,
        rows: int,
    ) -> Speculation | None:
        if draft is None:
            return None
        if self._encoder is not None:
            raise InputError("speculative decoding supports language models only, not encoder-decoders")
        if isinstance(draft, PromptLookup):
            return Speculation(draft, draft_tokens)
        if not isinstance(draft, CPUEngine):
            raise InputError("the assistant must be on the same device as the model")
        return Speculation(AssistantModel(draft._runner(requests, config, rows, draft_tokens)), draft_tokens)

    def _runner(
        self, requests: Sequence[Request], config: GenerationConfig, batch_size: int | None, draft_tokens: int
    ) -> CPURunner:
        """Allocate the rows of a batch for the longest of the requests."""
        beams = config.num_beams if config.sampling is None else 1
        copies = 1 if config.sampling is None else config.num_return_sequences
        capacity = max(len(request.prompt) + request.max_new_tokens + 1 for request in requests) + draft_tokens
        source_capacity = max(len(request.source or ()) for request in requests)
        groups = min(self._groups(beams, capacity, source_capacity, batch_size), len(requests) * copies)
        return CPURunner(
            self._decoder,
            self._encoder,
            rows=groups * beams,
            capacity=capacity,
            sources=groups if self._encoder is not None else 0,
            source_capacity=source_capacity,
        )

    def _groups(self, beams: int, capacity: int, source_capacity: int, batch_size: int | None) -> int:
        """Return how many requests fit into a batch."""
        if batch_size is not None:
            return batch_size
        stack = self._decoder.stack
        per_token = 2 * len(stack.layers) * stack.dim * (2 if self._decoder.half_cache else 4)
        free = free_memory(torch.device("cpu"))
        budget = MAX_CACHE_BYTES if free is None else min(MAX_CACHE_BYTES, free // 4)
        return max(1, min(MAX_ROWS // beams, budget // (per_token * (beams * capacity + source_capacity))))


def require_plain(model: nn.Module) -> None:
    """Raise `Unsupported` if something is attached to the model that only its own forward pass would call."""
    if model.training:
        raise Unsupported("fast decoding", "a model in training mode")
    if any(layer.watchers or layer.ablations for layer in attention_layers(model).values()):
        raise Unsupported("fast decoding", "watched or ablated attention")
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        raise Unsupported("fast decoding", "a model with forward hooks")


class EngineCache:
    """The engine of a model, rebuilt when its weights change."""

    def __init__(self, model: nn.Module, dtype: DType = "auto", *, enabled: bool = True) -> None:
        self._model, self._dtype, self._enabled = model, dtype, enabled
        self._engine: Engine | None = None
        self._weights: tuple[Any, ...] = ()
        self.reason = ""  # why there is no engine

    def get(self) -> Engine | None:
        """Return the engine, or None if the model has to be decoded by the simple searches."""
        try:
            if not self._enabled:
                raise Unsupported("fast decoding", "a pipeline with use_engine = False")
            require_plain(self._model)
            weights = tuple((weight.data_ptr(), weight._version) for weight in self._model.parameters())
            if weights != self._weights:
                self._engine, self._weights = None, weights
                self._engine = Engine.build(self._model, self._dtype)
        except Unsupported as error:
            self.reason = error.reason
            return None
        return self._engine


def _expected_length(request: Request) -> int:
    """Return a guess at the number of new tokens, to decode long requests first."""
    return request.max_new_tokens if request.source is None else len(request.source)


def _weight_type(dtype: torch.dtype) -> WeightType:
    names: dict[torch.dtype, WeightType] = {torch.bfloat16: "bfloat16", torch.int8: "int8"}
    return names.get(dtype, "float32")
