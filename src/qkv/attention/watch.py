"""See the attention of any model while it runs, whichever backend computes it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.backends.reference import REFERENCE
from qkv.attention.mask import Mask
from qkv.attention.operator import Attend
from qkv.attention.score import Keys
from qkv.attention.spec import Attended, Request
from qkv.errors import InputError
from qkv.types import Float, Tensor


class Record:
    """The attention of one layer: one call after another, as one matrix."""

    def __init__(self) -> None:
        self._calls: list[Float[Tensor, "batch heads query key"]] = []

    def add(self, weights: Float[Tensor, "batch heads query key"]) -> None:
        self._calls.append(weights)

    @property
    def weights(self) -> Float[Tensor, "batch heads query key"]:
        """The queries of all calls below each other; where the keys grew from call to call, the early rows end in 0."""
        if not self._calls:
            raise InputError("nothing has run under watch yet: call the model inside the with block")
        keys = max(call.shape[-1] for call in self._calls)
        return torch.cat([F.pad(call, (0, keys - call.shape[-1])) for call in self._calls], dim=2)


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
    `layers` picks by number (2: every layer numbered 2) or by name ("decoder", "decoder.0.cross").
    """
    attending = {layer_name(path): module for path, module in model.named_modules() if isinstance(module, Attend)}
    chosen = {name: module for name, module in attending.items() if layers is None or _picks(layers, name)}
    if not chosen:
        raise InputError(f"no attention layer matches {layers!r} (layers: {', '.join(attending) or 'none'})")
    seen = {name: Record() for name in chosen}
    hooks = [
        module.register_forward_hook(_recorder(seen[name], heads, queries), with_kwargs=True)
        for name, module in chosen.items()
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def layer_name(path: str) -> str:
    """The name a person knows an attention layer by: decoder.0.cross_attention.attend is decoder.0.cross."""
    return path.removesuffix("attend").rstrip(".").removesuffix("attention").rstrip("._")


def _picks(layers: Sequence[int | str], name: str) -> bool:
    parts = name.split(".")
    return any(
        str(layer) in parts if isinstance(layer, int) else name == layer or name.startswith(f"{layer}.")
        for layer in layers
    )


def _recorder(record: Record, heads: Sequence[int] | None, queries: Sequence[int] | None) -> Any:
    def hook(module: Attend, args: tuple[Any, ...], kwargs: dict[str, Any], result: Attended) -> None:
        weights = _rebuild(module, *args, **kwargs)
        if heads is not None:
            weights = weights[:, list(heads)]
        if queries is not None:
            weights = weights[:, :, list(queries)]
        record.add(weights)

    return hook


@torch.no_grad()
def _rebuild(
    module: Attend, query: Tensor, key: Tensor | Keys, value: Tensor, mask: Mask | None = None
) -> Float[Tensor, "batch heads query key"]:
    """The weights of a call, from its inputs and terms."""
    request = Request(query, key, value, module.score, module.position, mask, module.align, 0.0, True)
    weights, _ = REFERENCE.weights(request)
    return weights
