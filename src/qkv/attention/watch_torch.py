"""Record the attention weights of `torch.nn.MultiheadAttention`, also inside `torch.nn.Transformer` and its layers.

PyTorch computes no weights unless a call asks for them, and averages them over the heads by default. Each call is
therefore repeated without dropout, gradients and averaging; its own result is not changed. While a model is watched,
PyTorch's fused inference path is switched off, because it does not call the attention layers.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from qkv.attention.layers import check_heads
from qkv.attention.score_shape import select_along


def torch_layers(model: nn.Module) -> dict[str, nn.MultiheadAttention]:
    """Return the attention layers of PyTorch in a model by their paths; a layer itself is "attention"."""
    modules = model.named_modules()
    return {path or "attention": module for path, module in modules if isinstance(module, nn.MultiheadAttention)}


@contextmanager
def watching_torch_layers(
    model: nn.Module, layers: Mapping[str, nn.MultiheadAttention], records: Mapping[str, Any]
) -> Iterator[None]:
    """Add the weights of each layer of a model to the record of the same name."""
    for name, layer in layers.items():
        if records[name].heads is not None:
            check_heads(records[name].heads, name, layer.num_heads)
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as hooks:
        hooks.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        torch.backends.mha.set_fastpath_enabled(False)
        for name, layer in layers.items():
            hooks.callback(layer.register_forward_hook(_recorder(records[name]), with_kwargs=True).remove)
        yield


def _recorder(record: Any) -> Any:
    @torch.no_grad()
    def add(layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights")
        call = {**dict(zip(names, inputs, strict=False)), **options}
        training = layer.training
        layer.training = False  # of this layer only; its own modules are not called
        try:
            _, weights = layer.forward(**{**call, "need_weights": True, "average_attn_weights": False})
        finally:
            layer.training = training
        weights = weights if weights.dim() == 4 else weights[None]  # of one sequence without a batch
        record.add_weights(select_along(weights, 1, record.heads))

    return add
