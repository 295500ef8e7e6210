"""Predictions that can be explained: their outputs, the units of their input, and the model as a function of these.

The attribution methods and the tests of faithfulness need only this interface. Each kind of model has one subclass.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from qkv.attention import Attend, watch
from qkv.attention.layers import select_layers
from qkv.attention.score_shape import Weights
from qkv.errors import InputError
from qkv.nn.multi_head import MultiHeadAttention
from qkv.nn.quantized import is_quantized
from qkv.pipelines.output import Candidate
from qkv.types import Bool, Float, Int, Tensor

NO_UNIT = -1  # owner of a position that belongs to no unit, such as [CLS]
MAX_POSITIONS = 16_384  # input positions of a batch of variants
INPUT_LAYERS = ("embed.tokens", "source_embed.tokens", "encoder.embed", "embed")  # first match; of token embeddings


class Reweighted(NamedTuple):
    """The attention layer whose weights `qkv.interpret.reweighting` replaces."""

    layer: str
    weights: Weights  # of one pass: [rows, heads, query, key]
    query: int  # the replaced row of weights


@dataclass(frozen=True)
class LayerRecord:
    """Weights and values of an attention layer in a pass, and its output projection if it has one."""

    weights: Weights
    values: Float[Tensor, "rows kv_heads key dim"]
    projection: Float[Tensor, "width merged"] | None

    def norms(self, queries: Sequence[int]) -> Float[Tensor, "rows queries key"]:
        """Return |sum_h a_h f_h(v)| of each key, with f_h the value and output projection of a head.

        From Kobayashi et al. (2020). Without an output projection, f(v) is the value itself.
        """
        weights, values = self.weights[:, :, list(queries)], self.values
        values = values.repeat_interleave(weights.shape[1] // values.shape[1], dim=1)
        weighted = weights[..., None] * values[:, :, None]  # [rows, heads, query, key, dim]
        if self.projection is None:
            return weighted.sum(dim=1).norm(dim=-1)
        merged = weighted.permute(0, 2, 3, 1, 4).flatten(-2)
        return (merged @ self.projection.T).norm(dim=-1)


class Explainable(ABC):
    """A prediction of a model: one output (a label) or several (the tokens of a text), and the units of its input."""

    layers: tuple[str, ...] = ()  # attention layers with a query of the output and the input as keys, last layer first
    self_layers: tuple[str, ...] = ()  # self-attention layers of the input, first layer first
    grid: tuple[int, int] | None = None  # rows and columns of the units of an image
    unit: str = "token"

    text: str  # the whole prediction
    outputs: tuple[str, ...]  # display text of each explained output
    classes: Int[Tensor, "outputs"]  # index of each output among the classes: the label or the token id
    rows: list[int]  # index of each output in the prediction
    # All labels, or the most likely next tokens, with their probabilities, most likely first; none of a decoded text.
    labels: tuple[Candidate, ...] = ()

    def __init__(self, model: Any, units: tuple[str, ...], owner: Int[Tensor, "positions"]) -> None:
        self.model = model
        self.units = units
        self.owner = owner  # index of the unit that each input position belongs to, or NO_UNIT
        # whether the text has whitespace before each unit
        self.spaced = tuple(self.unit == "word" or unit[:1].isspace() for unit in units)

    def explain_outputs(self, text: str, outputs: Sequence[str], classes: Sequence[int]) -> None:
        """Set the prediction and its outputs."""
        self.text, self.outputs, self.classes = text, tuple(outputs), torch.tensor(classes)
        self.rows = [*range(len(outputs))]

    def select(self, numbers: Sequence[int]) -> None:
        """Explain some of the outputs only."""
        self.rows = [self.rows[number] for number in numbers]
        self.outputs = tuple(self.outputs[number] for number in numbers)
        self.classes = self.classes[list(numbers)]

    @abstractmethod
    def forward(self, keep: Bool[Tensor, "variants units"]) -> Float[Tensor, "variants outputs classes"]:
        """Return the logits of each output for variants of the input that keep some of the units."""

    @abstractmethod
    def query_rows(self, output: int) -> list[int]:
        """Return the queries of an output in `layers`; their attention is averaged."""

    def everything(self, variants: int = 1) -> Bool[Tensor, "variants units"]:
        """Return variants that keep all units."""
        return torch.ones(variants, len(self.units), dtype=torch.bool)

    def log_probs(self, keep: Bool[Tensor, "variants units"]) -> Float[Tensor, "variants outputs"]:
        """Return the log-probability of each output for variants of the input, without gradients."""
        size = max(1, MAX_POSITIONS // max(1, len(self.owner)))
        with torch.no_grad():
            parts = [self.chosen(self.forward(part)) for part in keep.split(size)]
        return torch.cat(parts).cpu()

    def chosen(self, logits: Float[Tensor, "variants outputs classes"]) -> Float[Tensor, "variants outputs"]:
        """Return the log-probability of each explained output."""
        log_p = logits.float().log_softmax(dim=-1)
        return log_p.gather(2, self.classes.to(log_p.device)[None, :, None].expand(len(log_p), -1, 1))[..., 0]

    def kept_tokens(self, ids: Sequence[int], keep: Bool[Tensor, "variants units"]) -> list[list[int]]:
        """Return the token ids of variants of a text, without those of the units that are not kept."""
        owner = self.owner.tolist()
        return [
            [token for token, unit in zip(ids, owner, strict=True) if unit == NO_UNIT or kept[unit]]
            for kept in keep.tolist()
        ]

    def to_units(self, values: Float[Tensor, "outputs positions"]) -> Float[Tensor, "outputs units"]:
        """Sum values of input positions by unit."""
        inside = self.owner != NO_UNIT
        summed = torch.zeros(len(values), len(self.units), dtype=values.dtype)
        return summed.index_add(1, self.owner[inside], values.cpu()[:, inside])

    def to_input_units(self, values: Float[Tensor, "outputs positions"]) -> Float[Tensor, "outputs units"]:
        """Sum values of the positions of `input_gradients` by unit."""
        return self.to_units(values)

    # gradients

    def input_gradients(
        self, scales: Float[Tensor, "steps"]
    ) -> tuple[Float[Tensor, "positions dim"], Float[Tensor, "outputs positions dim"]]:
        """Return x - x' and the gradient of each output's log-probability by x, averaged over the scaled inputs.

        The input x is the embedding of each position. It is scaled to x' + s (x - x') for each s in `scales`; x' is
        zero for the units, and x itself for other positions, so that their difference is zero.
        """
        inside = (self.owner != NO_UNIT)[None, :, None]

        def scale(x: Tensor) -> Tensor:
            factors = torch.where(inside.to(x.device), scales.to(x.device)[:, None, None], 1.0)
            flat = x.detach().reshape(len(scales), -1, x.shape[-1])
            captured.append(flat[0])
            leaves.append((flat * factors).reshape(x.shape).requires_grad_())
            return leaves[-1]

        captured: list[Tensor] = []
        leaves: list[Tensor] = []
        with torch.enable_grad(), transform_output(self.input_layer, scale):
            log_p = self.chosen(self.forward(self.everything(len(scales))))
        difference = captured[0] * inside[0].to(captured[0].device)
        return difference, self._gradients(log_p, leaves[0]).reshape(len(self.outputs), *difference.shape)

    def _gradients(self, log_p: Float[Tensor, "steps outputs"], x: Tensor) -> Tensor:
        """Return the gradient of the log-probability of each output by x, averaged over the steps."""
        gradients = []
        for number in range(log_p.shape[1]):
            (gradient,) = torch.autograd.grad(log_p[:, number].sum(), x, retain_graph=True)
            gradients.append(gradient.reshape(len(log_p), -1, *gradient.shape[1:]).mean(dim=0))
        return torch.stack(gradients).detach()

    @property
    def input_layer(self) -> nn.Module:
        """The module whose output is the embedding of each input position."""
        for path in INPUT_LAYERS:
            module: Any = self.model
            for name in path.split("."):
                module = getattr(module, name, None)
            if isinstance(module, nn.Embedding):
                return module
        reason = f"{type(self.model).__name__} has no embedding of its tokens"
        if is_quantized(self.model):
            reason = "the weights are int8; load the model with qkv.load(..., dequantize=True)"
        raise InputError(f"gradients are not available: {reason}")

    # attention

    def record(self) -> dict[str, LayerRecord]:
        """Run the model on the whole input and return the weights and values of its attention layers."""
        layers = select_layers(self.model, None)
        with torch.no_grad(), watch(self.model) as records, record_values(layers) as values:
            self.forward(self.everything())
            return {
                name: LayerRecord(records[name].weights, without_one_hot(values[name]), self._projection(attend))
                for name, attend in layers.items()
                if name in values
            }

    def _projection(self, attend: Attend) -> Tensor | None:
        """Return the weight of the output projection after an attention layer."""
        blocks = (module for module in self.model.modules() if isinstance(module, MultiHeadAttention))
        return next((block.out_proj.weight.detach() for block in blocks if block.attend is attend), None)

    def attention_scores(self, *, norms: bool, all_layers: bool) -> Float[Tensor, "outputs units"]:
        """Return the attention of each output to the units, averaged over heads and over one or all layers."""
        records = self.record()
        layers = self.layers if all_layers else self.layers[:1]
        per_layer = [self._rows_of(records[layer], norms) for layer in layers]
        return self.to_units(torch.stack(per_layer).mean(dim=0))

    def _rows_of(self, record: LayerRecord, norms: bool) -> Float[Tensor, "outputs positions"]:
        """Return the rows of the outputs in a layer; norms are divided by their sum, as weights sum to 1."""
        if not norms:
            return self.of_queries(record.weights[0].mean(dim=0).float().cpu())
        chosen = torch.stack([record.norms(self.query_rows(row))[0].mean(dim=0) for row in self.rows]).float().cpu()
        return chosen / chosen.sum(dim=-1, keepdim=True).clamp(min=1e-12)

    def of_queries(self, weights: Float[Tensor, "query key"]) -> Float[Tensor, "outputs key"]:
        """Return the row of weights of each output, averaged over its queries."""
        return torch.stack([weights[self.query_rows(number)].mean(dim=0) for number in self.rows])

    def reweighted(self, output: int) -> Reweighted:
        """Return the weights of an output in the last attention layer."""
        layer, queries = self.layers[0], self.query_rows(self.rows[output])
        if len(queries) > 1:
            raise InputError(f"the attention of {len(queries)} queries is averaged: there are no weights to replace")
        return Reweighted(layer, self.record()[layer].weights, queries[0])


@contextmanager
def transform_output(module: nn.Module, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace the output of a module."""
    hook = module.register_forward_hook(lambda module, inputs, output: function(output))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def record_values(layers: Mapping[str, Attend]) -> Iterator[dict[str, Tensor]]:
    """Record the values [rows, heads, key, dim] of the last call of each attention layer."""
    values: dict[str, Tensor] = {}
    hooks = [
        attend.register_forward_hook(lambda module, inputs, output, name=name: values.update({name: inputs[2]}))
        for name, attend in layers.items()
    ]
    try:
        yield values
    finally:
        for hook in hooks:
            hook.remove()


def without_one_hot(values: Float[Tensor, "rows heads key dim"]) -> Float[Tensor, "rows heads key value_dim"]:
    """Remove the one-hot vector of its position from the end of each value (see `qkv.nn.source_attention`)."""
    keys = values.shape[2]
    if values.shape[-1] <= keys:
        return values
    positions = torch.eye(keys, dtype=values.dtype, device=values.device)
    return values[..., :-keys] if torch.equal(values[0, 0, :, -keys:], positions) else values
