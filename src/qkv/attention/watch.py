"""See the attention of any model while it runs, whichever backend computes it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, final

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.backends.reference import REFERENCE
from qkv.attention.extent import pick
from qkv.attention.layers import Layer, check_heads, chosen_layers, numbered
from qkv.attention.replay import in_backward
from qkv.attention.score import Keys
from qkv.attention.spec import Request
from qkv.errors import InputError
from qkv.types import Float, Tensor


@contextmanager
def watch(
    model: nn.Module,
    *,
    layers: Layer | Sequence[Layer] | None = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
) -> Iterator["Seen"]:
    """Record the weights of a model's attention layers: `with watch(model) as seen: ...; seen["encoder.0"].weights`.

    The model computes what it always does, on the backend it always uses, compiled or not; the weights are rebuilt for
    the heads and queries that are asked for, and not before they are looked at, where that can wait. `layers` picks by
    number (2: every layer numbered 2) or by name ("decoder", "decoder.0.cross"); `queries` are numbered over a whole
    pass. A beam search is recorded step by step as its beams stood at each step: `Record.along` follows one hypothesis
    through it. What is recorded inside a CUDA graph belongs to the graph, and each replay writes it anew.
    """
    heads = None if heads is None else numbered("heads", heads)
    queries = None if queries is None else numbered("queries", queries)
    chosen = chosen_layers(model, layers)
    seen = Seen({name: Record(name, heads, queries) for name in chosen})
    if heads is not None:
        for name, attend in chosen.items():
            check_heads(heads, name, attend.heads)

    number = next(_NUMBERS)
    _OPEN[number] = tuple(seen.values())
    watchers = [Watcher(record, _ticket(number, place)) for place, record in enumerate(seen.values())]
    hook = model.register_forward_pre_hook(PassBegins(_OPEN[number], _ticket(number)))
    for attend, watcher in zip(chosen.values(), watchers, strict=True):
        attend.watchers = (*attend.watchers, watcher)
    try:
        yield seen
    finally:
        hook.remove()
        for attend, watcher in zip(chosen.values(), watchers, strict=True):
            attend.watchers = tuple(other for other in attend.watchers if other is not watcher)
        del _OPEN[number]


def begin_passes(model: nn.Module) -> None:
    """What a model computes from here on is another pass: said by whoever runs it step by step, such as a search."""
    for module in model.modules():
        for watcher in getattr(module, "watchers", ()):
            watcher.record.begin_pass()


class Waiting(NamedTuple):
    """A call of the operator whose weights nobody has looked at yet."""

    request: Request
    heads: tuple[int, ...] | None
    queries: tuple[int, ...] | None
    versions: tuple[int, ...]  # of the tensors they are made of

    def weights(self) -> Float[Tensor, "batch heads query key"]:
        if self.versions != versions(self.request):
            raise InputError(
                "the queries or keys of a watched call were written to before its weights were looked at: look first, "
                "or give the call tensors of its own (.clone())"
            )
        return REFERENCE.weights(self.request.of(self.heads, self.queries))[0]


def versions(request: Request) -> tuple[int, ...]:
    """How often the queries and keys have been written to; tensors of inference mode do not count."""
    key = request.key if isinstance(request.key, Tensor) else request.key.tensor
    return tuple(0 if tensor.is_inference() else tensor._version for tensor in (request.query, key))


@dataclass
class Pass:
    """The calls of a layer in one pass, as far as they were asked for, and the size of all of it."""

    calls: list[Tensor | Waiting] = field(default_factory=list)  # weights, or what they are rebuilt from
    rows: int = 0
    keys: int = 0

    @torch.no_grad()
    def seen(self) -> list[Tensor]:
        """The weights of each call, [batch, heads, query, key]; those that could wait are rebuilt now."""
        weights = [call.weights() if isinstance(call, Waiting) else call for call in self.calls]
        self.calls = list(weights)
        return weights

    def joined(self) -> Float[Tensor, "batch heads query key"]:
        """The rows of all calls below each other; where the keys grew, the early rows end in zeros."""
        calls = self.seen()
        if len({call.shape[0] for call in calls}) > 1:
            sizes = ", ".join(str(call.shape[0]) for call in calls)
            raise InputError(
                f"calls with batches of {sizes} rows are no pass: watch them one at a time, or follow one hypothesis "
                "of a search with .along(hypothesis.rows)"
            )
        rows = [F.pad(call, (0, self.keys - call.shape[-1])) for call in calls]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=2)


@final
class Record:
    """The attention of one layer, pass by pass.

    A pass is one call of the model, or the steps of an incremental decoding: their rows are put below each other, and
    where the keys grew from step to step, the early rows end in zeros.
    """

    def __init__(self, layer: str, heads: tuple[int, ...] | None, queries: tuple[int, ...] | None) -> None:
        self.layer = layer
        self.heads = heads
        self.queries = queries
        self._passes = [Pass()]

    @property
    def passes(self) -> list[Float[Tensor, "batch heads query key"]]:
        """The weights of each pass, [batch, heads, query, key]."""
        return [self._asked_for(one) for one in self._passes if one.rows]

    @property
    def weights(self) -> Float[Tensor, "batch heads query key"]:
        """The weights of the one pass that was watched."""
        return self._asked_for(self._one_pass())

    def along(self, rows: Sequence[int]) -> Float[Tensor, "heads query key"]:
        """The weights of one hypothesis of a search: step t as row `rows[t]` of the batch had it (`Hypothesis.rows`).

        A hypothesis has a row of weights for each of its tokens, and one more for its end token.
        """
        if self.queries is not None:
            raise InputError("a hypothesis is followed from its first step on: watch without naming queries")
        steps = self._one_pass().seen()[: len(rows)]
        if len(steps) < len(rows) or any(step.shape[2] != 1 for step in steps):
            raise InputError(
                f"{len(rows)} steps of a search were asked for, but {self.layer or 'this layer'} has not run that "
                "often with one query at a time: watch the search itself, and look at the decoder's layers"
            )
        keys = steps[-1].shape[-1]
        return torch.cat(
            [F.pad(step[row], (0, keys - step.shape[-1])) for step, row in zip(steps, rows, strict=True)], dim=1
        )

    def begin_pass(self) -> None:
        """What comes from here on belongs to another pass."""
        if self._passes[-1].rows:
            self._passes.append(Pass())

    def forget(self) -> None:
        """Let go of what was recorded so far."""
        self._passes = [Pass()]

    def check(self, request: Request) -> None:
        """Raise where a call does not have the heads that are watched."""
        if self.heads is not None:
            check_heads(self.heads, self.layer, request.extent.heads)

    def add(self, request: Request, weights: Float[Tensor, "batch heads query key"] | None) -> None:
        """Take in one call of the operator, from its weights if it has them, or else rebuilding what is asked for."""
        self.check(request)
        start = request.extent.start
        if isinstance(start, int) and start < self._passes[-1].rows:  # it begins again
            self.begin_pass()
        queries = self._rows_asked_for(request.extent.queries)
        found: Tensor | Waiting | None = None
        if queries != ():
            if weights is not None:
                found = pick(pick(weights, 1, self.heads), 2, queries)
            else:
                asked = Waiting(request, self.heads, queries, versions(request))
                found = asked if can_wait(request) else asked.weights()
        self._keep(found, request.extent.queries, request.extent.keys)

    def add_weights(self, weights: Float[Tensor, "batch heads query key"]) -> None:
        """Take in all rows of one call, for the watched heads; the memory they are in may be written again."""
        queries = self._rows_asked_for(weights.shape[2])
        if queries is None:
            found: Tensor | None = weights.clone()
        else:
            found = pick(weights, 2, queries).clone() if queries else None
        self._keep(found, *weights.shape[2:])

    def _rows_asked_for(self, rows: int) -> tuple[int, ...] | None:
        """Which of the next so many rows are asked for; None for all."""
        if self.queries is None:
            return None
        first = self._passes[-1].rows
        return tuple(query - first for query in sorted(self.queries) if first <= query < first + rows)

    def _keep(self, found: Tensor | Waiting | None, rows: int, keys: int) -> None:
        one = self._passes[-1]
        one.rows += rows
        one.keys = max(one.keys, keys)
        if found is not None:
            one.calls.append(found)

    def _one_pass(self) -> Pass:
        passes = [one for one in self._passes if one.rows]
        if not passes:
            raise InputError("nothing has run under watch yet: call the model inside the with block")
        if len(passes) > 1:
            raise InputError(f"{len(passes)} passes ran under watch, not one: look at .passes")
        return passes[0]

    def _asked_for(self, one: Pass) -> Float[Tensor, "batch heads query key"]:
        """The weights of a pass, its queries in the order in which they were named."""
        if self.queries is None:
            return one.joined()
        if max(self.queries) >= one.rows:
            raise InputError(
                f"query {max(self.queries)} was asked for, but the pass had {one.rows}, numbered from 0: "
                "watch fewer, or run further"
            )
        order = sorted(self.queries)
        joined = one.joined()
        return joined if list(self.queries) == order else joined[:, :, [order.index(query) for query in self.queries]]


def can_wait(request: Request) -> bool:
    """Whether weights can be rebuilt when someone looks: nothing that they are made of changes until then.

    Parameters move with the next update, what a static cache holds with the next text, and everything in a CUDA graph
    with the next replay. And keys take less memory than weights only where many queries read them.
    """
    made_of = (request.score, request.position, request.align)
    return (
        request.extent.queries > 1
        and not request.query.requires_grad
        and not isinstance(request.extent.start, Tensor)
        and not (isinstance(request.key, Keys) and not request.key.lasting)
        and not any(isinstance(term, nn.Module) and any(True for _ in term.parameters()) for term in made_of)
        and not (request.query.is_cuda and torch.cuda.is_current_stream_capturing())
    )


@final
class Seen(dict[str, Record]):
    """The records of the layers that are watched, by their names."""

    def forget(self) -> None:
        """Let go of what was recorded so far: where a model is watched for long, its weights would fill the memory."""
        for record in self.values():
            record.forget()

    def __missing__(self, name: str) -> Record:
        raise InputError(f"no layer {name!r} is watched (layers: {', '.join(self)})")


# Compiled code has no place for a Python object that fills while it runs. So it calls an operator, which finds the
# record by a ticket: a tensor, so that another number in it does not mean another compilation. The operators are said
# to write to the ticket, and do: the compiler would leave out one that only returns nothing.
_EVERY_TIME = (torch.Tag.cudagraph_unsafe,)  # a graph of the compiler's own would call them once, when it is recorded
_NUMBERS = count()
_OPEN: dict[int, tuple[Record, ...]] = {}  # the records of each with block that is open


def _ticket(*numbers: int) -> Tensor:
    with torch.inference_mode(False):  # it may be written to outside of inference mode, too
        return torch.tensor([0, *numbers], device="cpu")


@torch.library.custom_op("qkv::observe", mutates_args=("ticket",), tags=_EVERY_TIME)
def observe(weights: Tensor, ticket: Tensor) -> None:
    """Hand weights to a record, from inside of compiled code."""
    used, number, place = ticket.tolist()
    ticket[0] = used + 1
    _OPEN[number][place].add_weights(weights)


@torch.library.custom_op("qkv::begin_pass", mutates_args=("ticket",), tags=_EVERY_TIME)
def begin_pass(ticket: Tensor) -> None:
    """Begin another pass in all records of a with block."""
    used, number = ticket.tolist()
    ticket[0] = used + 1
    for record in _OPEN[number]:
        record.begin_pass()


@observe.register_fake
def _(weights: Tensor, ticket: Tensor) -> None:
    return None


@begin_pass.register_fake
def _(ticket: Tensor) -> None:
    return None


@final
class Watcher:
    """What a layer calls with each request while it is watched."""

    def __init__(self, record: Record, ticket: Tensor) -> None:
        self.record = record
        self.ticket = ticket

    @torch.no_grad()
    def __call__(self, request: Request, weights: Float[Tensor, "batch heads query key"] | None) -> None:
        weights = None if weights is None else weights.detach()
        if not torch.compiler.is_compiling():
            if not in_backward():
                self.record.add(request, weights)
            return
        self.record.check(request)
        if weights is None and not request.score._parameters:
            weights, _ = REFERENCE.weights(request.of(self.record.heads, None))
        else:  # the compiler cannot follow how a score with weights is made into that of some heads: rebuild them all
            weights = pick(REFERENCE.weights(request)[0] if weights is None else weights, 1, self.record.heads)
        observe(weights, self.ticket)


@final
class PassBegins:
    """What a model calls before each forward pass while it is watched."""

    def __init__(self, records: tuple[Record, ...], ticket: Tensor) -> None:
        self.records = records
        self.ticket = ticket

    def __call__(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            begin_pass(self.ticket)
            return
        for record in self.records:
            record.begin_pass()
