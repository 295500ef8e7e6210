"""Record weights and ablate heads of models of the transformers library, through its attention interface.

While a model is watched or ablated, its attention implementation is QKV_EAGER: the model's own eager function, which
computes the weights, with eager masks. What the eager function adds to the scores (position biases, soft caps, sinks)
is therefore in the weights. The implementation that the model had before is restored afterwards.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from qkv.attention.score_shape import select_along
from qkv.errors import InputError
from qkv.types import Tensor

QKV_EAGER = "qkv_eager"  # name of the attention implementation
INTERFACE = "ALL_ATTENTION_FUNCTIONS"  # what a forward method calls its attention function through
EAGER = "eager_attention_forward"  # of the Python module that defines a layer

_RECORDS: dict[nn.Module, tuple[Any, ...]] = {}  # the records of each watched layer
_ABLATIONS: dict[nn.Module, tuple[Callable[[Tensor], Tensor], ...]] = {}  # what changes the output of a layer
_REPLACED: dict[int, tuple[str, int]] = {}  # the implementation of a config before, and how many users replace it


def transformers_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention layers of a model of transformers by their paths; none for other models."""
    if not _pretrained_models(model):
        return {}
    layers = {path: module for path, module in model.named_modules() if _uses_interface(module)}
    if not layers:
        raise InputError(
            f"{type(model).__name__} does not use the attention interface of transformers ({INTERFACE}): only models "
            "that do, such as BertModel, GPT2LMHeadModel and ViTModel, can be watched or ablated"
        )
    return layers


def _pretrained_models(model: nn.Module) -> list[Any]:
    """Return the models of transformers in a model, outer ones first; without importing the library."""
    library: Any = sys.modules.get("transformers.modeling_utils")
    return [] if library is None else [part for part in model.modules() if isinstance(part, library.PreTrainedModel)]


def _uses_interface(module: nn.Module) -> bool:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and INTERFACE in code.co_names and _eager_function(module) is not None


def _eager_function(module: nn.Module) -> Any:
    return getattr(sys.modules.get(type(module).__module__), EAGER, None)


@contextmanager
def watching_layers(model: nn.Module, layers: Mapping[str, nn.Module], records: Mapping[str, Any]) -> Iterator[None]:
    """Add the weights of each layer to the record of the same name."""
    with ExitStack() as undo:
        _use_eager_attention(model, undo)
        for name, layer in layers.items():
            _add(_RECORDS, layer, records[name], undo)
        yield


def ablate_transformers_layer(
    model: nn.Module, layer: nn.Module, zeroed: Callable[[Tensor], Tensor], undo: ExitStack
) -> None:
    """Apply `zeroed` to the output [batch, heads, query, dim] of a layer until `undo` is closed."""
    _use_eager_attention(model, undo)
    _add(_ABLATIONS, layer, zeroed, undo)


def _add(table: dict[nn.Module, tuple[Any, ...]], layer: nn.Module, entry: Any, undo: ExitStack) -> None:
    table[layer] = (*table.get(layer, ()), entry)
    undo.callback(_remove, table, layer, entry)


def _remove(table: dict[nn.Module, tuple[Any, ...]], layer: nn.Module, entry: Any) -> None:
    left = tuple(other for other in table[layer] if other is not entry)
    if left:
        table[layer] = left
    else:
        del table[layer]


def _use_eager_attention(model: nn.Module, undo: ExitStack) -> None:
    """Set the attention implementation until `undo` is closed; the last of several users restores the one before."""
    _register()
    models = _pretrained_models(model)
    configs = list({id(config): config for part in models for config in _configs(part.config)}.values())
    for config in configs:
        before, users = _REPLACED.get(id(config), (config._attn_implementation, 0))
        _REPLACED[id(config)] = before, users + 1
    undo.callback(_restore_attention, configs)
    for part in models:
        part.set_attn_implementation(QKV_EAGER)


def _restore_attention(configs: Sequence[Any]) -> None:
    for config in configs:  # setting that of a config also sets those inside it
        before, users = _REPLACED.pop(id(config))
        config._attn_implementation = before if users == 1 else QKV_EAGER
        if users > 1:
            _REPLACED[id(config)] = before, users - 1


def _configs(config: Any) -> Iterator[Any]:
    """Yield a config and those inside it, outer ones first."""
    yield config
    for name in getattr(config, "sub_configs", ()):
        if (inner := getattr(config, name, None)) is not None:
            yield from _configs(inner)


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(QKV_EAGER, attention_forward)
    AttentionMaskInterface.register(QKV_EAGER, eager_mask)


def attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Run the eager attention of a layer, record its weights before dropout, and zero the output of ablated heads."""
    eager = _eager_function(module)
    output, weights = eager(module, query, key, value, attention_mask, **options)
    if records := _RECORDS.get(module):
        with torch.no_grad():
            if options.get("dropout"):
                _, weights = eager(module, query, key, value, attention_mask, **{**options, "dropout": 0.0})
            for record in records:
                record.add_weights(select_along(weights.detach(), 1, record.heads))
    for zeroed in _ABLATIONS.get(module, ()):
        output = zeroed(output.transpose(1, 2)).transpose(1, 2)  # [batch, query, heads, dim]
    return output, weights
