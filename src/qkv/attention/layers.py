"""The attention layers of a model, by the names people know them by, and the numbers of their heads."""

from collections import Counter
from collections.abc import Sequence

from torch import nn

from qkv.attention.operator import Attend
from qkv.errors import InputError

Layer = int | str  # 2: every layer numbered 2; "decoder": all of the decoder; "decoder.0.cross": that layer


def chosen_layers(model: nn.Module, layers: Layer | Sequence[Layer] | None) -> dict[str, Attend]:
    """The layers that are meant, by their names; all of them for None."""
    attending = attention_layers(model)
    known = ", ".join(attending)
    if not attending:
        raise InputError("the model has no attention layer")
    if layers is None:
        return attending
    wanted = [layers] if isinstance(layers, int | str) else layers
    for one in wanted:
        if not any(_picks(one, name) for name in attending):
            raise InputError(f"no attention layer matches {one!r} (layers: {known})")
    return {name: layer for name, layer in attending.items() if any(_picks(one, name) for one in wanted)}


def attention_layers(model: nn.Module) -> dict[str, Attend]:
    """The attention layers of a model by the names people know; those that would share one keep their whole paths."""
    paths = {_uncompiled(path): module for path, module in model.named_modules() if isinstance(module, Attend)}
    names = Counter(layer_name(path) for path in paths)
    return {layer_name(path) if names[layer_name(path)] == 1 else path: module for path, module in paths.items()}


def layer_name(path: str) -> str:
    """The name a person knows an attention layer by: decoder.0.cross_attention.attend is decoder.0.cross."""
    return path.removesuffix("attend").rstrip(".").removesuffix("attention").rstrip("._")


def _uncompiled(path: str) -> str:
    """The path of a module as it was before `torch.compile` wrapped the model or a part of it."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def _picks(layer: Layer, name: str) -> bool:
    if isinstance(layer, int):
        return str(layer) in name.split(".")
    return name == layer or name.startswith(f"{layer}.")


def numbered(what: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """Heads or queries that were asked for, once they are seen to make sense: numbered from 0, none twice."""
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise InputError(f"{what} are named by their numbers from 0 on, at least one and none twice, not {numbers!r}")
    return tuple(numbers)


def check_heads(heads: tuple[int, ...], layer: str, count: int | None) -> None:
    """Raise where a layer has no such heads; a layer that learns of its heads from its inputs is checked by them."""
    if count is not None and max(heads) >= count:
        raise InputError(
            f"there is no head {max(heads)} in {layer or 'this layer'}: its heads are numbered from 0 to {count - 1}"
        )
