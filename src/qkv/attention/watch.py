"""See the attention of any model while it runs, whichever backend computes it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.backends.reference import REFERENCE
from qkv.attention.operator import Attend
from qkv.attention.spec import Request
from qkv.errors import InputError
from qkv.types import Float, Tensor


class Record:
    """The attention of one layer, pass by pass.

    A pass is one call of the model, or the steps of an incremental decoding: their rows are put below each other, and
    where the keys grew from step to step, the early rows end in zeros.
    """

    def __init__(self, heads: Sequence[int] | None, queries: Sequence[int] | None) -> None:
        self._heads = heads
        self._queries = queries
        self._passes: list[list[Tensor]] = [[]]  # of calls, each [batch, heads, query, key]

    def begin_pass(self) -> None:
        """What comes from here on belongs to another pass."""
        if self._passes[-1]:
            self._passes.append([])

    @torch.no_grad()
    def add(self, request: Request) -> None:
        """Take in the weights of one call of the operator, rebuilt for the heads that are watched."""
        heads = None if self._heads is None else torch.tensor(self._heads, device=request.query.device)
        weights, _ = REFERENCE.weights(request.of(heads, None))
        self._passes[-1].append(weights)

    @property
    def passes(self) -> list[Tensor]:
        """The weights of each pass, [batch, heads, query, key]."""
        return [self._joined(calls) for calls in self._passes if calls]

    @property
    def weights(self) -> Float[Tensor, "batch heads query key"]:
        """The weights of the one pass that was watched."""
        passes = self.passes
        if not passes:
            raise InputError("nothing has run under watch yet: call the model inside the with block")
        if len(passes) > 1:
            raise InputError(f"{len(passes)} passes ran under watch, not one: look at .passes")
        return passes[0]

    def _joined(self, calls: list[Tensor]) -> Float[Tensor, "batch heads query key"]:
        keys = max(call.shape[-1] for call in calls)
        rows = torch.cat([F.pad(call, (0, keys - call.shape[-1])) for call in calls], dim=2)
        return rows if self._queries is None else rows[:, :, list(self._queries)]


@contextmanager
def watch(
    model: nn.Module,
    *,
    layers: Sequence[int | str] | None = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
) -> Iterator[Mapping[str, Record]]:
    """Record the weights of a model's attention layers: `with watch(model) as seen: ...; seen["encoder.0"].weights`.

    The model computes what it always does, on the backend it always uses; the weights are rebuilt beside it.
    `layers` picks by number (2: every layer numbered 2) or by name ("decoder", "decoder.0.cross"); `queries` are
    numbered over a whole pass. A beam search is recorded step by step as its beams stood at each step.
    """
    attending = _attending(model)
    chosen = {name: module for name, module in attending.items() if layers is None or _picks(layers, name)}
    if not chosen:
        raise InputError(f"no attention layer matches {layers!r} (layers: {', '.join(attending) or 'none'})")
    seen = {name: Record(heads, queries) for name in chosen}

    def begin_pass(module: nn.Module, args: tuple[Any, ...]) -> None:
        for record in seen.values():
            record.begin_pass()

    hook = model.register_forward_pre_hook(begin_pass)
    for name, module in chosen.items():
        module.watcher = seen[name].add
    try:
        yield seen
    finally:
        hook.remove()
        for module in chosen.values():
            module.watcher = None


def _attending(model: nn.Module) -> dict[str, Attend]:
    """The attention layers of a model by the names people know; those that would share one keep their whole paths."""
    paths = {path: module for path, module in model.named_modules() if isinstance(module, Attend)}
    names = Counter(layer_name(path) for path in paths)
    return {layer_name(path) if names[layer_name(path)] == 1 else path: module for path, module in paths.items()}


def layer_name(path: str) -> str:
    """The name a person knows an attention layer by: decoder.0.cross_attention.attend is decoder.0.cross."""
    return path.removesuffix("attend").rstrip(".").removesuffix("attention").rstrip("._")


def _picks(layers: Sequence[int | str], name: str) -> bool:
    parts = name.split(".")
    return any(
        str(layer) in parts if isinstance(layer, int) else name == layer or name.startswith(f"{layer}.")
        for layer in layers
    )
