"""The decoding engine: continuous batching of requests for one model, with packed weights and cached states.

GPT-2 and the Transformer run on the kernels in `cpu` and `gpu`, Llama on those in `cpu`, in the type of their weights
unless told otherwise.
Recurrent, convolutional and captioning models run their own `step`, on a GPU in a CUDA graph. Other models, and terms
that the kernels do not implement, are decoded by the simple searches (`generate`), with the same results.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, cast, get_args

import torch
from torch import nn

from qkv.attention.layers import attention_layers
from qkv.errors import InputError, Unsupported
from qkv.generation.beam_batching import BeamDecoder
from qkv.generation.continuous_batching import Speculation, TokenDecoder, decode_requests, stream_request
from qkv.generation.cpu.runner import cpu_factory
from qkv.generation.decode import GenerationConfig
from qkv.generation.decoder_stack import WeightType
from qkv.generation.requests import Request, Result, Tokens
from qkv.generation.runner import Runner, RunnerFactory
from qkv.generation.sampling import check_sampled_tokens
from qkv.generation.speculative import AssistantModel, PromptLookup
from qkv.runtime.memory import free_memory, trim_heap

DType = Literal["auto", "float32", "bfloat16", "int8"]
GREEDY = GenerationConfig()


@dataclass(frozen=True)
class SpeculativeConfig:
    """Speculative decoding: a smaller model, or the text so far, guesses tokens that the model checks in one pass."""

    draft: "Engine | PromptLookup"
    tokens: int = 5  # most guesses per step


class Engine(ABC):
    """Decodes requests with one model; made by `Engine.build`."""

    max_cache_bytes: int

    def __init__(self, factory: RunnerFactory) -> None:
        self.factory = factory

    @staticmethod
    def build(model: nn.Module, dtype: DType = "auto") -> "Engine":
        """Prepare the weights of a model; raise `Unsupported` if it has no fast decoder on its device."""
        require_plain(model)
        if getattr(model, "pointer", None) is not None:
            raise Unsupported("fast decoding", "a source pointer")
        trim_heap()  # what loading the model has freed, e.g. a parsed tokenizer.json
        device, weight_type = next(model.parameters()).device, _weight_type(model) if dtype == "auto" else dtype
        if device.type == "cpu":
            return CPUEngine(cpu_factory(model, weight_type))
        if device.type != "cuda":
            raise Unsupported("fast decoding", f"the device {device}")
        if find_spec("triton") is None:
            raise Unsupported("fast decoding", "GPUs without Triton")
        from qkv.generation.gpu.engine import GPUEngine
        from qkv.generation.gpu.runner import gpu_factory

        return GPUEngine(gpu_factory(model, weight_type))

    @property
    def description(self) -> str:
        """The kernels that run, e.g. "CPU kernels (AVX-512), bfloat16 weights"."""
        return self.factory.description

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.factory.vocab_size

    @property
    def context(self) -> AbstractContextManager[Any]:
        """The context in which the simple searches use the same weights."""
        return getattr(self.factory, "context", None) or nullcontext()

    def decode(
        self,
        requests: Sequence[Request],
        tokens: Tokens,
        config: GenerationConfig,
        *,
        batch_size: int | None = None,
        speculative: SpeculativeConfig | None = None,
    ) -> Iterator[Result]:
        """Yield (index, hypotheses) of each request as it is finished; at most `batch_size` are decoded at once.

        Speculative decoding has the same results.
        """
        if not requests:
            return iter(())
        self._check(requests, config, speculative)
        if speculative is not None and tokens.grammar is not None:
            raise InputError("a grammar cannot be combined with speculative decoding")
        # The longest first: a long request that starts last would keep a nearly empty batch busy.
        order = sorted(range(len(requests)), key=lambda index: -requests[index].expected_length)
        results = self._decode([requests[index] for index in order], tokens, config, batch_size, speculative)
        return ((order[index], hypotheses) for index, hypotheses in results)

    def stream(
        self,
        request: Request,
        tokens: Tokens,
        config: GenerationConfig,
        *,
        speculative: SpeculativeConfig | None = None,
    ) -> Iterator[int]:
        """Yield the tokens of one request as they are generated."""
        self._check([request], config, speculative)
        return self._stream(request, tokens, config, speculative)

    def open_batch(
        self, tokens: Tokens, *, rows: int, capacity: int, source_capacity: int = 0, config: GenerationConfig = GREEDY
    ) -> TokenDecoder | BeamDecoder:
        """Return an empty batch that requests can join at any time: a server submits them and calls `advance`.

        It has `rows` rows of up to `capacity` tokens, the prompt and the end token counted. With beam search, each
        request takes `num_beams` of them, and a request without a sampling of its own has that of the config.
        """
        beams, _ = config.rows_per_request
        sources = rows // beams if self.factory.has_source else 0
        runner = tokens.constrain(self.factory.make(rows, capacity, sources, source_capacity))
        if beams > 1:
            return BeamDecoder(runner, deque(), tokens, config, longest=capacity)
        return TokenDecoder(runner, deque(), tokens, config)

    @abstractmethod
    def _decode(
        self,
        requests: Sequence[Request],
        tokens: Tokens,
        config: GenerationConfig,
        batch_size: int | None,
        speculative: SpeculativeConfig | None,
    ) -> Iterator[Result]:
        """Yield the results of requests, which start in this order."""

    @abstractmethod
    def _stream(
        self, request: Request, tokens: Tokens, config: GenerationConfig, speculative: SpeculativeConfig | None
    ) -> Iterator[int]:
        """Yield the tokens of one request."""

    def fitting(self, beams: int, capacity: int, source_capacity: int) -> int:
        """Return how many requests can be decoded at once."""
        free = free_memory(self.factory.device)
        budget = self.max_cache_bytes if free is None else min(self.max_cache_bytes, free // 4)
        group_bytes = self.factory.cache_bytes(beams, capacity, source_capacity)
        return max(1, min(self.factory.max_rows // beams, budget // group_bytes))

    def _check(
        self, requests: Sequence[Request], config: GenerationConfig, speculative: SpeculativeConfig | None
    ) -> None:
        if config.sampling is not None and config.sampling.temperature > 0:
            check_sampled_tokens(config.num_return_sequences, max(request.max_new_tokens for request in requests))
        if speculative is not None:
            if config.num_beams > 1:
                raise InputError("speculative decoding supports greedy search and sampling only, not beam search")
            self.check_speculative(speculative)

    def check_speculative(self, speculative: SpeculativeConfig) -> None:
        """Raise if the model, or its draft, does not support speculative decoding."""
        draft = speculative.draft
        if speculative.tokens < 1:
            raise InputError(f"the number of guesses must be at least 1, not {speculative.tokens}")
        if self.factory.has_source or not self.factory.can_truncate:
            raise InputError("speculative decoding supports Transformer language models only")
        if isinstance(draft, Engine):
            if draft.vocab_size != self.vocab_size:
                raise InputError(
                    f"the assistant has {draft.vocab_size:,} tokens and the model {self.vocab_size:,}: "
                    "speculative decoding needs the same vocabulary"
                )
            if type(draft) is not type(self) or not draft.factory.can_truncate:
                raise InputError("the assistant must be a Transformer language model on the device of the model")


class CPUEngine(Engine):
    """Decodes requests on the CPU."""

    max_cache_bytes = 2**30

    def _decode(
        self,
        requests: Sequence[Request],
        tokens: Tokens,
        config: GenerationConfig,
        batch_size: int | None,
        speculative: SpeculativeConfig | None,
    ) -> Iterator[Result]:
        runner = self._runner(requests, config, batch_size, speculative)
        speculation = self._speculation(speculative, requests, config, runner.rows)
        return decode_requests(runner, requests, tokens, config, speculation)

    def _stream(
        self, request: Request, tokens: Tokens, config: GenerationConfig, speculative: SpeculativeConfig | None
    ) -> Iterator[int]:
        runner = self._runner([request], config, 1, speculative)
        speculation = self._speculation(speculative, [request], config, 1)
        return stream_request(runner, request, tokens, config, speculation)

    def _speculation(
        self, speculative: SpeculativeConfig | None, requests: Sequence[Request], config: GenerationConfig, rows: int
    ) -> Speculation | None:
        if speculative is None:
            return None
        draft = speculative.draft
        if isinstance(draft, CPUEngine):
            draft_runner = draft._runner(requests, config, rows, speculative)
            return Speculation(AssistantModel(draft_runner), speculative.tokens)
        assert isinstance(draft, PromptLookup)
        return Speculation(draft, speculative.tokens)

    def _runner(
        self,
        requests: Sequence[Request],
        config: GenerationConfig,
        batch_size: int | None,
        speculative: SpeculativeConfig | None,
    ) -> Runner:
        """Allocate the rows of a batch for the longest of the requests."""
        beams, copies = config.rows_per_request
        guesses = 0 if speculative is None else speculative.tokens
        capacity = max(request.capacity for request in requests) + guesses
        source_capacity = max(request.source_length for request in requests)
        groups = batch_size or self.fitting(beams, capacity, source_capacity)
        groups = min(groups, len(requests) * copies)
        return self.factory.make(groups * beams, capacity, groups if self.factory.has_source else 0, source_capacity)


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


def decoding_dtype(dtype: object) -> DType:
    """Return the type of the weights in decoding by its name, which may also be given as a type of PyTorch."""
    for name in get_args(DType):
        if str(dtype).removeprefix("torch.") == name:
            return cast(DType, name)
    raise InputError(f"dtype must be one of {', '.join(get_args(DType))}, not {dtype}")


def _weight_type(model: nn.Module) -> WeightType:
    """Return the type of the largest matrix of a model, e.g. its embedding."""
    largest = max(model.parameters(), key=lambda weight: weight.numel())
    names: dict[torch.dtype, WeightType] = {torch.bfloat16: "bfloat16", torch.int8: "int8"}
    return names.get(largest.dtype, "float32")
