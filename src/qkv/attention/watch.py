"""Record the attention weights of any model while it runs, whichever backend computes it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, final

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.backends.reference import REFERENCE
from qkv.attention.hard import in_backward
from qkv.attention.layers import (
    Layer,
    check_heads,
    checked_indices,
    head_count,
    require_module,
    select_any_layers,
)
from qkv.attention.operator import Attend
from qkv.attention.score_shape import Weights, select_along
from qkv.attention.spec import AttentionRequest
from qkv.attention.torch_layers import watching_torch_layers
from qkv.attention.transformers_layers import watching_layers
from qkv.errors import InputError
from qkv.registry import names_keywords
from qkv.runtime.notebook import Drawable
from qkv.types import Float, Tensor

MAX_SHOWN = 4  # layers in the repr of a recording


@names_keywords
def watch(
    model: nn.Module,
    *,
    layers: Layer | Sequence[Layer] | None = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
) -> AbstractContextManager["AttentionRecording"]:
    """Record the weights of a model's attention layers.

        with qkv.watch(model) as recording:
            model(source, target)
        recording["encoder.0"].weights  # [batch, heads, query, key]

    The model runs unchanged on its usual backend, compiled or not; the weights are recomputed for the selected heads
    and queries only, and lazily where possible. A beam search is recorded step by step, with the beams of each step;
    `AttentionRecord.for_hypothesis` extracts one hypothesis. Weights recorded inside a CUDA graph live in the graph's
    memory and are overwritten by each replay.

    A model of the transformers library is watched through its attention interface; it runs with its eager attention
    inside the with block, and each call of the model is a pass. Its layers are named by their paths ("h.0.attn"). So
    are layers of the class `torch.nn.MultiheadAttention`. One model can have layers of all these kinds.

    Args:
        model: Any `torch.nn.Module` with such layers.
        layers: Layer indices (2: every layer with index 2) or names ("decoder", "decoder.0.cross"); by default all.
        heads: Indices of the heads to record; by default all.
        queries: Indices of the queries to record, within a whole pass; by default all.

    Returns:
        A context manager that yields an `AttentionRecording`, a dict of `AttentionRecord` by layer name.
    """
    require_module(model, "watch")
    return _watching(model, layers, heads, queries)


@contextmanager
def _watching(
    model: nn.Module,
    layers: Layer | Sequence[Layer] | None,
    heads: Sequence[int] | None,
    queries: Sequence[int] | None,
) -> Iterator["AttentionRecording"]:
    """Record the weights of the selected layers."""
    heads = None if heads is None else checked_indices("heads", heads)
    queries = None if queries is None else checked_indices("queries", queries)
    selected = select_any_layers(model, layers)
    if heads is not None:
        for name, layer in selected.items():
            check_heads(heads, name, head_count(layer))
    recording = AttentionRecording({name: AttentionRecord(name, heads, queries) for name in selected})
    own = {name: layer for name, layer in selected.items() if isinstance(layer, Attend)}
    torch_layers = {name: layer for name, layer in selected.items() if isinstance(layer, nn.MultiheadAttention)}
    others = {name: layer for name, layer in selected.items() if name not in own and name not in torch_layers}
    with ExitStack() as stack:
        stack.enter_context(_watching_own_layers(model, own, recording))
        if torch_layers:
            stack.enter_context(watching_torch_layers(torch_layers, recording))
        if others:
            stack.enter_context(watching_layers(model, others, recording))
        yield recording


@contextmanager
def _watching_own_layers(
    model: nn.Module, layers: Mapping[str, Attend], recording: "AttentionRecording"
) -> Iterator[None]:
    """Record the layers of qkv, and start a new pass of all records with each call of the model."""
    recording_id = next(_RECORDING_IDS)
    _ACTIVE_RECORDS[recording_id] = tuple(recording.values())
    indices = {name: index for index, name in enumerate(recording)}
    watchers = {name: Watcher(recording[name], _handle(recording_id, indices[name])) for name in layers}
    pass_handle = _handle(recording_id)

    def start_pass(model: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            begin_pass(pass_handle)
        else:  # the first call of a custom operator imports torch._dynamo, which takes seconds
            recording.begin_pass()

    hook = model.register_forward_pre_hook(start_pass)
    for name, attend in layers.items():
        attend.watchers = (*attend.watchers, watchers[name])
    try:
        yield
    finally:
        hook.remove()
        for name, attend in layers.items():
            attend.watchers = tuple(w for w in attend.watchers if w is not watchers[name])
        del _ACTIVE_RECORDS[recording_id]


def begin_passes(model: nn.Module) -> None:
    """Start a new pass in all recordings of a model; called by step-by-step decoders."""
    for module in model.modules():
        for watcher in getattr(module, "watchers", ()):
            watcher.record.begin_pass()


class LazyWeights(NamedTuple):
    """A call of the operator whose weights have not been computed yet."""

    request: AttentionRequest
    heads: tuple[int, ...] | None
    queries: tuple[int, ...] | None
    versions: tuple[int, ...]  # version counters of query and key

    @property
    def rows(self) -> int:
        return self.request.shape.queries if self.queries is None else len(self.queries)

    def weights(self) -> Weights:
        if self.versions != tensor_versions(self.request):
            raise InputError(
                "the queries or keys of a watched call were modified in place before its weights were read: "
                "read the weights first, or pass copies of the tensors (.clone())"
            )
        return REFERENCE.weights(self.request.subset(self.heads, self.queries))


def tensor_versions(request: AttentionRequest) -> tuple[int, ...]:
    """Version counters of query and key, which in-place writes increment; inference tensors have none."""
    key = request.key if isinstance(request.key, Tensor) else request.key.tensor
    return tuple(0 if tensor.is_inference() else tensor._version for tensor in (request.query, key))


@dataclass
class ForwardPass:
    """The recorded calls of a layer in one forward pass, and the total number of query rows and keys."""

    calls: list[Tensor | LazyWeights] = field(default_factory=list)  # weights, or the requests to compute them from
    rows: int = 0
    keys: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Sizes [batch, heads, query, key] of the recorded weights, which need not have been computed."""
        first = self.calls[0]
        if isinstance(first, LazyWeights):
            sizes = first.request.shape
            batch, heads = sizes.batch, sizes.heads if first.heads is None else len(first.heads)
        else:
            batch, heads = first.shape[:2]
        rows = sum(call.shape[2] if isinstance(call, Tensor) else call.rows for call in self.calls)
        return batch, heads, rows, self.keys

    @torch.no_grad()
    def all_weights(self) -> list[Tensor]:
        """Return the weights [batch, heads, query, key] of each call, computing deferred ones now."""
        weights = [call.weights() if isinstance(call, LazyWeights) else call for call in self.calls]
        self.calls = list(weights)
        return weights

    def stacked(self) -> Weights:
        """Concatenate the rows of all calls; if the number of keys grew, early rows are padded with zeros."""
        calls = self.all_weights()
        if len({call.shape[0] for call in calls}) > 1:
            sizes = ", ".join(str(call.shape[0]) for call in calls)
            raise InputError(
                f"the calls of this pass have different batch sizes ({sizes}): watch them separately, or select one "
                "hypothesis of a search with .for_hypothesis(hypothesis.rows)"
            )
        rows = [F.pad(call, (0, self.keys - call.shape[-1])) for call in calls]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=2)


@final
class AttentionRecord(Drawable):
    """Attention weights of one layer, by forward pass.

    A pass is one call of the model, or all steps of incremental decoding: their rows are concatenated, and if the
    number of keys grew from step to step, early rows are padded with zeros.
    """

    def __init__(self, layer: str, heads: tuple[int, ...] | None, queries: tuple[int, ...] | None) -> None:
        self.layer = layer
        self.heads = heads
        self.queries = queries
        self._passes = [ForwardPass()]

    def __repr__(self) -> str:
        shapes = self.shapes
        recorded = f"weights {list(shapes[0])}" if shapes else "nothing recorded"
        return f"AttentionRecord('{self.layer}', {recorded}{f' in {len(shapes)} passes' if len(shapes) > 1 else ''})"

    @property
    def shapes(self) -> list[tuple[int, int, int, int]]:
        """Sizes [batch, heads, query, key] of the weights of each pass, without computing them."""
        return [p.shape for p in self._passes if p.calls]

    @property
    def passes(self) -> list[Weights]:
        """Weights of each pass, [batch, heads, query, key]."""
        return [self._selected_weights(p) for p in self._passes if p.rows]

    @property
    def weights(self) -> Weights:
        """Weights of the only recorded pass."""
        return self._selected_weights(self._only_pass())

    def for_hypothesis(self, rows: Sequence[int]) -> Float[Tensor, "heads query key"]:
        """Weights of one hypothesis of a search: those of batch row `rows[t]` at step t (`Hypothesis.rows`).

        There is one row of weights per token of the hypothesis, including its end token.
        """
        if self.queries is not None:
            raise InputError("for_hypothesis needs all steps: call watch() without queries")
        steps = self._only_pass().all_weights()[: len(rows)]
        if len(steps) < len(rows) or any(step.shape[2] != 1 for step in steps):
            raise InputError(
                f"the hypothesis has {len(rows)} steps, but {self.layer or 'this layer'} has not recorded as many "
                "calls with one query each: watch the search itself and select a decoder layer"
            )
        keys = steps[-1].shape[-1]
        return torch.cat(
            [F.pad(step[row], (0, keys - step.shape[-1])) for step, row in zip(steps, rows, strict=True)], dim=1
        )

    def begin_pass(self) -> None:
        """Start a new pass."""
        if self._passes[-1].rows:
            self._passes.append(ForwardPass())

    def reset(self) -> None:
        """Discard everything recorded so far."""
        self._passes = [ForwardPass()]

    def check(self, request: AttentionRequest) -> None:
        """Raise if a call does not have the watched heads."""
        if self.heads is not None:
            check_heads(self.heads, self.layer, request.shape.heads)

    def add(self, request: AttentionRequest, weights: Weights | None) -> None:
        """Record one call of the operator: its weights if given, else those of the selected heads and queries."""
        self.check(request)
        start = request.shape.start
        if isinstance(start, int) and start < self._passes[-1].rows:  # a new sequence starts
            self.begin_pass()
        queries = self._selected_rows(request.shape.queries)
        call: Tensor | LazyWeights | None = None
        if queries != ():
            if weights is not None:
                call = select_along(select_along(weights, 1, self.heads), 2, queries)
            else:
                lazy = LazyWeights(request, self.heads, queries, tensor_versions(request))
                call = lazy if can_defer(request) else lazy.weights()
        self._append(call, request.shape.queries, request.shape.keys)

    def add_weights(self, weights: Weights) -> None:
        """Record all rows of one call for the watched heads, copying the weights since their memory may be reused."""
        queries = self._selected_rows(weights.shape[2])
        if queries is None:
            call: Tensor | None = weights.clone()
        else:
            call = select_along(weights, 2, queries).clone() if queries else None
        self._append(call, *weights.shape[2:])

    def _selected_rows(self, rows: int) -> tuple[int, ...] | None:
        """Which of the next `rows` rows are selected; None for all."""
        if self.queries is None:
            return None
        first = self._passes[-1].rows
        return tuple(query - first for query in sorted(self.queries) if first <= query < first + rows)

    def _append(self, call: Tensor | LazyWeights | None, rows: int, keys: int) -> None:
        current = self._passes[-1]
        current.rows += rows
        current.keys = max(current.keys, keys)
        if call is not None:
            current.calls.append(call)

    def _only_pass(self) -> ForwardPass:
        passes = [p for p in self._passes if p.rows]
        if not passes:
            raise InputError("nothing was recorded: call the model inside the with block")
        if len(passes) > 1:
            raise InputError(f"{len(passes)} passes were recorded, not one: use .passes")
        return passes[0]

    def _selected_weights(self, forward_pass: ForwardPass) -> Weights:
        """Weights of a pass, with the queries in the order in which they were selected."""
        if self.queries is None:
            return forward_pass.stacked()
        if max(self.queries) >= forward_pass.rows:
            raise InputError(
                f"query {max(self.queries)} is out of range: the pass has queries 0 to {forward_pass.rows - 1}"
            )
        order = sorted(self.queries)
        weights = forward_pass.stacked()
        return weights if list(self.queries) == order else weights[:, :, [order.index(query) for query in self.queries]]


def can_defer(request: AttentionRequest) -> bool:
    """Whether the weights can be computed later, because nothing they depend on will have changed by then.

    Parameters change with the next optimizer step, and everything in a CUDA graph with the next replay. Also, keys take
    less memory than weights only if there are many queries.
    """
    terms = (request.score, request.position, request.align)
    return (
        request.shape.queries > 1
        and not request.query.requires_grad
        and not isinstance(request.shape.start, Tensor)
        and not any(isinstance(term, nn.Module) and any(True for _ in term.parameters()) for term in terms)
        and not (request.query.is_cuda and torch.cuda.is_current_stream_capturing())
    )


@final
class AttentionRecording(dict[str, AttentionRecord], Drawable):
    """Records of the watched layers, by layer name."""

    def __repr__(self) -> str:
        layers = [f"{name} {list(shapes[0]) if (shapes := record.shapes) else '-'}" for name, record in self.items()]
        more = [f"and {len(layers) - MAX_SHOWN} more"] if len(layers) > MAX_SHOWN else []
        return f"AttentionRecording({len(layers)} layer(s): {', '.join([*layers[:MAX_SHOWN], *more])})"

    def begin_pass(self) -> None:
        """Start a new pass in all records."""
        for record in self.values():
            record.begin_pass()

    def reset(self) -> None:
        """Discard everything recorded so far, to free memory when a model is watched for long."""
        for record in self.values():
            record.reset()

    def __missing__(self, name: str) -> AttentionRecord:
        raise InputError(f"layer {name!r} is not watched (layers: {', '.join(self)})")


# Compiled code cannot append to a Python object. Instead it calls a custom operator, which finds the record by a
# handle: a tensor, so that a different value does not trigger a recompilation. The operators
# are declared to mutate the handle, and do so: otherwise the compiler would eliminate them as dead code.
_OP_TAGS = (torch.Tag.cudagraph_unsafe,)  # inside a CUDA graph of the compiler they would run only once, at capture
_RECORDING_IDS = count()
_ACTIVE_RECORDS: dict[int, tuple[AttentionRecord, ...]] = {}  # the records of each active with block


def _handle(*ids: int) -> Tensor:
    with torch.inference_mode(False):  # it may also be written to outside of inference mode
        return torch.tensor([0, *ids], device="cpu")


@torch.library.custom_op("qkv::observe", mutates_args=("handle",), tags=_OP_TAGS)
def observe(weights: Tensor, handle: Tensor) -> None:
    """Add weights to a record from inside compiled code."""
    calls, recording_id, index = handle.tolist()
    handle[0] = calls + 1
    _ACTIVE_RECORDS[recording_id][index].add_weights(weights)


@torch.library.custom_op("qkv::begin_pass", mutates_args=("handle",), tags=_OP_TAGS)
def begin_pass(handle: Tensor) -> None:
    """Start a new pass in all records of a with block."""
    calls, recording_id = handle.tolist()
    handle[0] = calls + 1
    for record in _ACTIVE_RECORDS[recording_id]:
        record.begin_pass()


@observe.register_fake
def _(weights: Tensor, handle: Tensor) -> None:
    return None


@begin_pass.register_fake
def _(handle: Tensor) -> None:
    return None


@final
class Watcher:
    """Callback of a watched layer, called with each request."""

    def __init__(self, record: AttentionRecord, handle: Tensor) -> None:
        self.record = record
        self.handle = handle

    @torch.no_grad()
    def __call__(self, request: AttentionRequest, weights: Weights | None) -> None:
        weights = None if weights is None else weights.detach()
        if not torch.compiler.is_compiling():
            if not in_backward():
                self.record.add(request, weights)
            return
        self.record.check(request)
        if weights is None and not request.score._parameters:
            weights = REFERENCE.weights(request.subset(self.record.heads, None))
        else:  # the compiler cannot trace Score.select_heads with parameters: compute all heads
            weights = select_along(REFERENCE.weights(request) if weights is None else weights, 1, self.record.heads)
        observe(weights, self.handle)
