"""Switch heads of attention off, to see what they were good for."""

from collections.abc import Sequence
from types import TracebackType
from typing import final

from torch import nn

from qkv.attention.extent import indices
from qkv.attention.layers import Layer, check_heads, chosen_layers, numbered
from qkv.attention.operator import Attend
from qkv.types import Float, Tensor


def ablate(model: nn.Module, layer: Layer, heads: Sequence[int]) -> "Ablation":
    """Switch heads of a layer off, at once: they read zeros, whatever they attend to.

    `layer` is named as in `watch`: a number or a name, which may stand for several layers. What this returns switches
    the heads on again, by `.restore()` or at the end of a with block. Ablations of one layer add up.
    """
    heads = numbered("heads", heads)
    chosen = chosen_layers(model, [layer])
    for name, attend in chosen.items():
        check_heads(heads, name, attend.heads)
    return Ablation({attend: SwitchedOff(name, heads) for name, attend in chosen.items()})


@final
class SwitchedOff:
    """Heads of one layer whose output is zero."""

    def __init__(self, layer: str, heads: tuple[int, ...]) -> None:
        self.layer = layer
        self.heads = heads

    def __call__(
        self, output: Float[Tensor, "batch heads query value_dim"]
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """What the heads read, zeros for those that are off."""
        check_heads(self.heads, self.layer, output.shape[1])
        return output.index_fill(1, indices(self.heads, output.device), 0.0)


@final
class Ablation:
    """Heads that are switched off until `restore`, or until the end of a with block."""

    def __init__(self, off: dict[Attend, SwitchedOff]) -> None:
        self._off = off
        for attend, switched_off in off.items():
            attend.ablations = (*attend.ablations, switched_off)

    def restore(self) -> None:
        """Switch the heads on again, unless another ablation keeps them off; a second time does nothing."""
        for attend, switched_off in self._off.items():
            attend.ablations = tuple(other for other in attend.ablations if other is not switched_off)

    def __enter__(self) -> "Ablation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()
