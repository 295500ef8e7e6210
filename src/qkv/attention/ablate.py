"""Ablation of attention heads."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import final

from torch import nn

from qkv.attention.layers import Layer, check_heads, checked_indices, select_layers
from qkv.attention.operator import Attend
from qkv.attention.score_shape import Outputs, index_tensor


def ablate(model: nn.Module, layer: Layer, heads: Sequence[int]) -> "Ablation":
    """Zero the output of attention heads, effective immediately.

    `layer` selects layers as in `watch`: an index or a name, which may match several layers. The returned `Ablation`
    restores the heads with `.restore()` or at the end of a with block. Ablations of the same layer accumulate.
    """
    heads = checked_indices("heads", heads)
    layers = select_layers(model, [layer])
    for name, attend in layers.items():
        check_heads(heads, name, attend.heads)
    return Ablation({attend: ZeroedHeads(name, heads) for name, attend in layers.items()})


@final
class ZeroedHeads:
    """Sets the output of some heads of a layer to zero."""

    def __init__(self, layer: str, heads: tuple[int, ...]) -> None:
        self.layer = layer
        self.heads = heads

    def __call__(self, output: Outputs) -> Outputs:
        """Return the output with the ablated heads set to zero."""
        check_heads(self.heads, self.layer, output.shape[1])
        return output.index_fill(1, index_tensor(self.heads, output.device), 0.0)


@final
class Ablation(ExitStack):
    """Heads that are ablated until `restore` is called or the with block ends."""

    def __init__(self, zeroed: dict[Attend, ZeroedHeads]) -> None:
        super().__init__()
        for attend, heads in zeroed.items():
            attend.ablations = (*attend.ablations, heads)
            self.callback(_remove_ablation, attend, heads)

    def restore(self) -> None:
        """Restore the heads, except those that another ablation still covers; calling it again has no effect."""
        self.close()


def _remove_ablation(attend: Attend, heads: ZeroedHeads) -> None:
    attend.ablations = tuple(ablation for ablation in attend.ablations if ablation is not heads)
