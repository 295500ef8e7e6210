"""Attribution methods: a score of each unit of an input for each output of a prediction.

    attention               a_j: attention weight of the output's query, averaged over heads
    rollout                 row of the query in prod_l norm(0.5 A_l + 0.5 I)              (Abnar and Zuidema 2020)
    value_weighted          |sum_h a_hj f_h(v_j)|, divided by the sum over j              (Kobayashi et al. 2020)
    gradient                x_j . d log p / d x_j
    integrated_gradients    (x_j - x'_j) . 1/m sum_k d log p / d x_j at x' + (k - 1/2)/m (x - x')   (Sundararajan 2017)
    leave_one_out           log p(output | x) - log p(output | x without unit j)
    random                  uniform in [0, 1), the baseline

log p is the log-probability of the output. x_j are the embeddings of a unit with the baseline x' = 0, or the pixels of
a region of an image with the mean color as x'. The query of an output is [CLS], the query of attention pooling, the
last token of a prompt, or the decoder's at that output; if a model averages over the patches of an image, the patches
are queries, and their attention is averaged. Scores of a unit of several positions are summed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from qkv.errors import InputError
from qkv.interpret.explainable import Explainable
from qkv.registry import nearest
from qkv.types import Float, Tensor

Scores = Float[Tensor, "outputs units"]


@dataclass(frozen=True)
class AttributionOptions:
    """Options of the methods; a method ignores those that it does not have."""

    layers: Literal["last", "all"] = "last"  # of attention and value_weighted: the last layer, or the mean of all
    steps: int = 32  # of integrated_gradients
    seed: int = 0  # of random


def attention(prediction: Explainable, options: AttributionOptions) -> Scores:
    """Attention weights, averaged over heads."""
    return prediction.attention_scores(norms=False, all_layers=options.layers == "all")


def value_weighted(prediction: Explainable, options: AttributionOptions) -> Scores:
    """Norms of the attention-weighted values."""
    return prediction.attention_scores(norms=True, all_layers=options.layers == "all")


def rollout(prediction: Explainable, options: AttributionOptions) -> Scores:
    """Attention rollout through the self-attention layers; in a decoder, from the last attention over the source."""
    records = prediction.record()
    weights = [records[layer].weights[0].mean(dim=0).float().cpu() for layer in prediction.self_layers]
    mixed = roll_out(weights)
    if prediction.layers[0] in prediction.self_layers:
        return prediction.to_units(prediction.of_queries(mixed))
    last = records[prediction.layers[0]].weights[0].mean(dim=0).float().cpu()
    return prediction.to_units(prediction.of_queries(last) @ mixed)


def roll_out(weights: Iterable[Float[Tensor, "length length"]]) -> Float[Tensor, "length length"]:
    """Return the product of 0.5 A + 0.5 I over the layers, from first to last, with rows that sum to 1."""
    mixed: Tensor | None = None
    for layer in weights:
        step = 0.5 * layer + 0.5 * torch.eye(len(layer), dtype=layer.dtype)
        step = step / step.sum(dim=-1, keepdim=True)
        mixed = step if mixed is None else step @ mixed
    if mixed is None:
        raise InputError("rollout needs at least one self-attention layer")
    return mixed


def gradient(prediction: Explainable, options: AttributionOptions) -> Scores:
    """Gradient times input."""
    return _gradient_times_input(prediction, torch.ones(1))


def integrated_gradients(prediction: Explainable, options: AttributionOptions) -> Scores:
    """Integrated gradients, by the midpoint rule."""
    return _gradient_times_input(prediction, (torch.arange(options.steps) + 0.5) / options.steps)


def _gradient_times_input(prediction: Explainable, scales: Float[Tensor, "steps"]) -> Scores:
    difference, gradients = prediction.input_gradients(scales)
    return prediction.to_input_units((gradients * difference).sum(dim=-1).float().cpu())


def leave_one_out(prediction: Explainable, options: AttributionOptions) -> Scores:
    """Drop of the log-probability when a unit is removed."""
    units = len(prediction.units)
    log_p = prediction.log_probs(torch.cat((prediction.everything(), ~torch.eye(units, dtype=torch.bool))))
    return (log_p[:1] - log_p[1:]).T


def random(prediction: Explainable, options: AttributionOptions) -> Scores:
    """Random scores."""
    generator = torch.Generator().manual_seed(options.seed)
    return torch.rand(len(prediction.outputs), len(prediction.units), generator=generator)


Method = Callable[[Explainable, AttributionOptions], Scores]
METHODS: dict[str, Method] = {
    "attention": attention,
    "rollout": rollout,
    "value_weighted": value_weighted,
    "gradient": gradient,
    "integrated_gradients": integrated_gradients,
    "leave_one_out": leave_one_out,
    "random": random,
}
NEED_ATTENTION = ("attention", "rollout", "value_weighted")


def unsupported(prediction: Explainable, method: str) -> str | None:
    """Return the reason why a method does not apply to a prediction; None if it does."""
    name = type(prediction.model).__name__
    if method in NEED_ATTENTION and not prediction.layers:
        return f"this {name} has no attention over all {prediction.unit}s of its input: use gradient or leave_one_out"
    if method == "rollout" and not prediction.self_layers:
        return f"this {name} has no self-attention layers: rollout would equal attention"
    return None


def check_methods(names: Iterable[str]) -> list[str]:
    """Return the names of methods without duplicates, with all methods for "all"; raise for an unknown one."""
    chosen: list[str] = []
    for name in names:
        if name != "all" and name not in METHODS:
            raise InputError(f"unknown method {name!r}{nearest(name, [*METHODS, 'all'])}")
        chosen += METHODS if name == "all" else [name]
    return list(dict.fromkeys(chosen))


def attribute(prediction: Explainable, method: str, options: AttributionOptions | None = None) -> Scores:
    """Return the scores of a method."""
    check_methods([method])
    if reason := unsupported(prediction, method):
        raise InputError(f"{method}: {reason}")
    return METHODS[method](prediction, options or AttributionOptions())
