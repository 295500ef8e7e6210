"""Interventions on attention layers: zero the output of heads, or replace the weights."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import final

from torch import nn

from qkv.attention.align import Align, AlignInput
from qkv.attention.layers import (
    Layer,
    check_heads,
    checked_indices,
    head_count,
    require_module,
    select_any_layers,
    select_layers,
)
from qkv.attention.operator import Attend
from qkv.attention.score_shape import Outputs, Weights, index_tensor
from qkv.attention.torch_layers import ablate_torch_layer
from qkv.attention.transformers_layers import ablate_transformers_layer
from qkv.errors import InputError, ShapeError
from qkv.registry import names_keywords


@names_keywords
def ablate(model: nn.Module, layer: Layer, heads: Sequence[int]) -> "Ablation":
    """Zero the output of attention heads, effective immediately.

    The output is that before the output projection. Ablations of the same layer accumulate. As with `watch`, a model of
    the transformers library runs with its eager attention meanwhile.

        with qkv.ablate(model, "decoder.0.cross", heads=[0, 3]):
            output = model(source, target)

    Args:
        model: A model with attention layers of qkv, of transformers, or of the class `torch.nn.MultiheadAttention`.
        layer: A layer index (2: every layer with index 2) or name ("decoder", "decoder.0.cross"), as in `watch`.
        heads: Indices of the heads, from 0.

    Returns:
        An `Ablation`, which restores the heads with `.restore()` or at the end of a with block.
    """
    require_module(model, "ablate")
    heads = checked_indices("heads", heads)
    layers = select_any_layers(model, [layer])
    for name, module in layers.items():
        check_heads(heads, name, head_count(module))
    with Ablation() as ablation:  # an error undoes those of earlier layers
        for name, module in layers.items():
            if isinstance(module, nn.MultiheadAttention):
                ablate_torch_layer(module, heads, ablation)
            elif isinstance(module, Attend):
                _ablate_attend(module, ZeroedHeads(name, heads), ablation)
            else:
                ablate_transformers_layer(model, module, ZeroedHeads(name, heads), ablation)
        return ablation.pop_all()


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
    """Heads that are ablated until `restore` is called or the with block ends.

    It holds plain callbacks, not generators, which would restore the heads when they are garbage collected.
    """

    def restore(self) -> None:
        """Restore the heads, except those that another ablation still covers; calling it again has no effect."""
        self.close()


def _ablate_attend(attend: Attend, zeroed: ZeroedHeads, undo: ExitStack) -> None:
    attend.ablations = (*attend.ablations, zeroed)
    undo.callback(_remove_ablation, attend, zeroed)


def _remove_ablation(attend: Attend, zeroed: ZeroedHeads) -> None:
    attend.ablations = tuple(ablation for ablation in attend.ablations if ablation is not zeroed)


@contextmanager
def replace_weights(model: nn.Module, layer: Layer, weights: Weights) -> Iterator[None]:
    """Run a layer with these attention weights instead of its own: output = weights @ value.

    A layer that is called step by step takes the next rows at each call, from the first row on in each forward pass.
    The weights of masked keys are set to zero, and `watch` records the replaced weights.

    Args:
        model: A model with attention layers of qkv.
        layer: A layer index (2: every layer with index 2) or name ("decoder", "decoder.0.cross").
        weights: Weights [batch, heads, query, key]; a batch size of 1 is expanded. They can require a gradient.
    """
    layers = select_layers(model, [layer])
    if len(layers) > 1:
        raise InputError(f"layer {layer!r} matches {len(layers)} attention layers, not one: {', '.join(layers)}")
    ((name, attend),) = layers.items()
    if attend.replacement is not None:
        raise InputError(f"the weights of {name or 'this layer'} are replaced already")
    replacement = ReplacedWeights(name, weights)
    hook = model.register_forward_pre_hook(lambda model, inputs: replacement.begin_pass())
    attend.replacement = replacement
    try:
        yield
    finally:
        attend.replacement = None
        hook.remove()


@final
class ReplacedWeights:
    """Weights of a layer for all queries of a pass, divided among the calls of the layer."""

    def __init__(self, layer: str, weights: Weights) -> None:
        self.layer = layer
        self.weights = weights
        self.row = 0  # first query of the next call

    def begin_pass(self) -> None:
        """Start again at the first query."""
        self.row = 0

    def __call__(self, queries: int) -> Align:
        """Return the align function of the next call."""
        first, self.row = self.row, self.row + queries
        if self.row > self.weights.shape[2]:
            raise ShapeError(
                f"the weights of {self.layer or 'this layer'} have {self.weights.shape[2]} queries, but the pass more"
            )
        return FixedWeights(self.weights[:, :, first : self.row])


@final
class FixedWeights(Align):
    """Returns the same weights whatever the scores are."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def compute_weights(self, inputs: AlignInput) -> Weights:
        batch, *rest = inputs.scores.shape
        if [*self.weights.shape[1:]] != rest or self.weights.shape[0] not in (1, batch):
            raise ShapeError(f"the weights are {[*self.weights.shape]}, but the scores {[*inputs.scores.shape]}")
        return self.weights.to(inputs.scores.dtype).expand(batch, -1, -1, -1)
