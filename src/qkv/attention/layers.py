"""Names of the attention layers of a model, and checks of layer and head selections."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from torch import nn

from qkv.attention.operator import Attend
from qkv.attention.torch_layers import torch_layers
from qkv.attention.transformers_layers import transformers_layers
from qkv.errors import InputError

Module = TypeVar("Module", bound=nn.Module)
Layer = int | str  # 2: every layer with index 2; "decoder": all layers of the decoder; "decoder.0.cross": one layer


def require_module(model: object, function: str) -> None:
    """Raise for what is not a network, such as a pipeline, which has one."""
    if not isinstance(model, nn.Module):
        hint = ": pass its .model" if isinstance(getattr(model, "model", None), nn.Module) else ""
        raise InputError(f"{function} takes a torch.nn.Module, not {type(model).__name__}{hint}")


def select_layers(model: nn.Module, layers: Layer | Sequence[Layer] | None) -> dict[str, Attend]:
    """Return the selected layers of qkv by name, all of them for None."""
    available = attention_layers(model)
    if not available:
        raise InputError(f"{type(model).__name__} has no attention layer of qkv")
    return _matching(available, layers)


def select_any_layers(model: nn.Module, layers: Layer | Sequence[Layer] | None) -> dict[str, nn.Module]:
    """Return the selected layers of qkv, transformers and PyTorch by name, all of them for None."""
    available = {**attention_layers(model), **transformers_layers(model), **torch_layers(model)}
    if not available:
        raise InputError(
            f"{type(model).__name__} has no attention layer of qkv, of transformers, or of torch.nn.MultiheadAttention"
        )
    return _matching(available, layers)


def head_count(layer: nn.Module) -> int | None:
    """Return the number of heads of a layer, or None if it is unknown before the first call."""
    if isinstance(layer, nn.MultiheadAttention):
        return layer.num_heads
    return layer.heads if isinstance(layer, Attend) else None


def _matching(available: Mapping[str, Module], layers: Layer | Sequence[Layer] | None) -> dict[str, Module]:
    if layers is None:
        return dict(available)
    selectors = [layers] if isinstance(layers, int | str) else layers
    for selector in selectors:
        if not any(_matches(selector, name) for name in available):
            raise InputError(f"no attention layer matches {selector!r} (layers: {', '.join(available)})")
    return {name: layer for name, layer in available.items() if any(_matches(s, name) for s in selectors)}


def attention_layers(model: nn.Module) -> dict[str, Attend]:
    """Return the attention layers of a model by short name, or by full path where short names collide."""
    paths = {_uncompiled(path): module for path, module in model.named_modules() if isinstance(module, Attend)}
    names = Counter(layer_name(path) for path in paths)
    return {layer_name(path) if names[layer_name(path)] == 1 else path: module for path, module in paths.items()}


def layer_name(path: str) -> str:
    """Short name of an attention layer: decoder.0.cross for decoder.0.cross_attention.attend."""
    return path.removesuffix("attend").rstrip(".").removesuffix("attention").rstrip("._")


def _uncompiled(path: str) -> str:
    """Path of a module without the wrappers added by `torch.compile`."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def _matches(selector: Layer, name: str) -> bool:
    if isinstance(selector, int):
        return str(selector) in name.split(".")
    return name == selector or name.startswith(f"{selector}.")


def checked_indices(name: str, indices: Sequence[int]) -> tuple[int, ...]:
    """Return head or query indices as a tuple after checking that they are distinct, non-negative and not empty."""
    if not indices or min(indices) < 0 or len(set(indices)) < len(indices):
        raise InputError(f"{name} must be a non-empty list of distinct indices >= 0, not {indices!r}")
    return tuple(indices)


def check_heads(heads: tuple[int, ...], layer: str, count: int | None) -> None:
    """Raise if a layer does not have these heads; `count` is None as long as its number of heads is unknown."""
    if count is not None and max(heads) >= count:
        raise InputError(
            f"head {max(heads)} is out of range for {layer or 'this layer'}, which has heads 0 to {count - 1}"
        )
