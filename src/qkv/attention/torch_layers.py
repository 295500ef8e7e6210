"""Record weights and ablate heads of `torch.nn.MultiheadAttention`, also inside `torch.nn.Transformer` and its layers.

PyTorch computes no weights unless a call asks for them, and averages them over the heads by default. Each call is
therefore repeated without dropout, gradients and averaging; its own result is not changed. An ablated head is one whose
columns of the output projection are zero. Meanwhile PyTorch's fused inference path is switched off, because it does not
call the attention layers.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from qkv.attention.score_shape import index_tensor, select_along

_slow_path_users: list[bool] = []  # whether the fused path was enabled, for each user that has switched it off


def torch_layers(model: nn.Module) -> dict[str, nn.MultiheadAttention]:
    """Return the attention layers of PyTorch in a model by their paths; a layer itself is "attention"."""
    modules = model.named_modules()
    return {path or "attention": module for path, module in modules if isinstance(module, nn.MultiheadAttention)}


@contextmanager
def watching_torch_layers(layers: Mapping[str, nn.MultiheadAttention], records: Mapping[str, Any]) -> Iterator[None]:
    """Add the weights of each layer to the record of the same name."""
    with ExitStack() as hooks:
        disable_fast_path(hooks)
        for name, layer in layers.items():
            hooks.callback(layer.register_forward_hook(_recorder(records[name]), with_kwargs=True).remove)
        yield


def disable_fast_path(undo: ExitStack) -> None:
    """Switch off PyTorch's fused inference path until `undo` is closed; the last of several users restores it."""
    _slow_path_users.append(torch.backends.mha.get_fastpath_enabled())
    torch.backends.mha.set_fastpath_enabled(False)
    undo.callback(_restore_fast_path)


def _restore_fast_path() -> None:
    enabled = any(_slow_path_users)
    _slow_path_users.pop()
    if not _slow_path_users:
        torch.backends.mha.set_fastpath_enabled(enabled)


def ablate_torch_layer(layer: nn.MultiheadAttention, heads: tuple[int, ...], undo: ExitStack) -> None:
    """Zero the output of some heads of a layer until `undo` is closed.

    The columns of the output projection of these heads are set to zero.
    """
    dim = layer.head_dim
    columns = tuple(column for head in heads for column in range(head * dim, (head + 1) * dim))
    shadow = vars(layer.out_proj)  # an attribute of the instance is found before the parameter of the same name
    outer: list[Any] = []  # the weight of an earlier ablation

    def zero_columns(layer: Any, inputs: Any) -> None:
        weight = layer.out_proj.weight
        outer.append(shadow.get("weight"))
        shadow["weight"] = weight.index_fill(1, index_tensor(columns, weight.device), 0.0)

    def restore(layer: Any, inputs: Any, output: Any) -> None:
        weight = outer.pop()
        if weight is None:
            del shadow["weight"]
        else:
            shadow["weight"] = weight

    disable_fast_path(undo)
    undo.callback(layer.register_forward_pre_hook(zero_columns).remove)
    undo.callback(layer.register_forward_hook(restore, prepend=True, always_call=True).remove)


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
