"""Alignments: map the scores of each query to attention weights."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import nn

from qkv.attention.mask import Mask
from qkv.attention.precision import at_least_float32
from qkv.attention.score import Sizes, uniform_parameter
from qkv.attention.score_shape import Allowed, CellIndex, Index, Queries, Scores, ScoreShape, Weights
from qkv.attention.term import AttentionTerm
from qkv.config import NonNegativeInt, PositiveFloat, Probability, Size
from qkv.errors import InputError, ShapeError
from qkv.registry import register
from qkv.types import Bool, Float, Int, Tensor

WINDOW = 10  # default half-width D of local attention, as in Luong, Pham and Manning (2015)


class SoftmaxForm(NamedTuple):
    """An align function as fused kernels compute it: softmax(scores / temperature) over the keys allowed by a mask."""

    temperature: float = 1.0
    mask: Mask | None = None


class AlignInput(NamedTuple):
    """Inputs of an align function.

    Attributes:
        scores: Scores [batch, heads, query, key]; masked keys have the lowest finite score.
        allowed: The mask, true where attention is allowed; it broadcasts to the scores. None allows everything.
        query: The queries, [batch, heads, query, dim].
        shape: Shape of the scores, and the position of the first query.
    """

    scores: Scores
    allowed: Allowed | None
    query: Queries
    shape: ScoreShape


class Align(AttentionTerm, ABC):
    """Maps scores to attention weights."""

    zeroes_masked = False  # whether masked keys already get weight 0 exactly, unless the whole row is masked

    @abstractmethod
    def compute_weights(self, inputs: AlignInput) -> Weights:
        """Return the attention weights; the weights of masked keys are set to zero afterwards."""

    def as_softmax(self) -> SoftmaxForm | None:
        """Return the parameters with which a fused softmax computes these weights; None if it cannot."""
        return None

    def selects_one_key(self) -> bool:
        """Whether the weights are now those of `select_keys`: 1 for one key per query, without a gradient."""
        return False

    def select_keys(self, inputs: AlignInput) -> Int[Tensor, "batch heads query"]:
        """Return the index of the key that each query attends to."""
        raise NotImplementedError


@final
@register("align", "softmax", "soft")
class Softmax(Align):
    """exp(s / T) / sum exp(s / T): soft attention.

    Args:
        temperature: T, which divides the scores: below 1 the weights are sharper, above 1 more uniform.
    """

    zeroes_masked = True

    def __init__(self, temperature: PositiveFloat = 1.0) -> None:  # of the softmax
        if not temperature > 0:
            raise InputError(f"temperature must be positive, not {temperature}")
        self.temperature = temperature

    def compute_weights(self, inputs: AlignInput) -> Weights:
        return torch.softmax(apply_temperature(inputs.scores, self.temperature, inputs.allowed), dim=-1)

    def as_softmax(self) -> SoftmaxForm:
        return SoftmaxForm(self.temperature)


@final
@register("align", "linear_start")
class LinearStart(nn.Module, Align):
    """Softmax that is left out at the start of training, where the weights are the scores: linear start.

    Sukhbaatar, Szlam, Weston and Fergus (2015) train memory networks this way, to avoid poor local minima. With `done`,
    the fraction of the training that is over, which `set_progress` sets:

        a = s in training, while done < until;   a = softmax(s) afterwards and in evaluation

    Args:
        until: Fraction of the training without the softmax.
    """

    def __init__(self, until: Probability = 0.2) -> None:  # fraction of the training without the softmax
        super().__init__()
        if not 0 <= until <= 1:
            raise InputError(f"until must lie in [0, 1], not {until}")
        self.until = until
        self.linear: Tensor
        # A tensor, since CUDA graphs would keep the value of a Boolean.
        self.register_buffer("linear", torch.tensor(False), persistent=False)

    def set_progress(self, done: float) -> None:
        """Set the fraction of the training that is over."""
        self.linear.fill_(done < self.until)

    def compute_weights(self, inputs: AlignInput) -> Weights:
        weights = torch.softmax(inputs.scores, dim=-1)
        if not self.training:
            return weights
        scores = inputs.scores if inputs.allowed is None else inputs.scores.masked_fill(~inputs.allowed, 0.0)
        return torch.where(self.linear, scores, weights)

    def as_softmax(self) -> SoftmaxForm | None:
        return None if self.training else SoftmaxForm()


@final
@register("align", "uniform")
class Uniform(Align):
    """1 / n for each of the n unmasked keys, independent of the scores: mean pooling."""

    zeroes_masked = True

    def compute_weights(self, inputs: AlignInput) -> Weights:
        return torch.softmax(apply_temperature(inputs.scores, math.inf, inputs.allowed), dim=-1)

    def as_softmax(self) -> SoftmaxForm:
        return SoftmaxForm(temperature=math.inf)


@final
@dataclass(frozen=True)
class StepWindow(Mask):
    """A query attends to the keys within `window` positions of its time step, on both sides."""

    window: int

    def allows(self, index: Index) -> Bool[Tensor, "..."]:
        return (index.key - index.step).abs() <= self.window


@final
@register("align", "local_m")
class LocalMonotonic(Align):
    """softmax over the keys in [t - D, t + D], at time step t: local-m (Luong, Pham and Manning 2015).

    The first query is at time step `start` (see `attend`), or 0. If no key is left in the window, the output is zero.

    Args:
        window: D, the number of keys on each side of t.
    """

    def __init__(self, window: NonNegativeInt = WINDOW) -> None:  # D, keys on each side of t
        if window < 0:
            raise InputError(f"window must be 0 or more, not {window}")
        self.window = window

    def compute_weights(self, inputs: AlignInput) -> Weights:
        return masked_softmax(StepWindow(self.window).allows(CellIndex(inputs.shape)), inputs.scores)

    def as_softmax(self) -> SoftmaxForm:
        return SoftmaxForm(mask=StepWindow(self.window))


@final
@register("align", "local_p")
class LocalPredictive(nn.Module, Align):
    """Softmax in a window around a position predicted from the query: local-p (Luong, Pham and Manning 2015).

        p_t = S sigmoid(v . tanh(W q_t))                               the center, among S keys indexed from 0
        a_ts = softmax(s : |s - p_t| <= D) exp(-(s - p_t)^2 / (2 sigma^2)),   sigma = D / 2

    As in the paper, the weights are not renormalized after the Gaussian: they sum to at most 1. W and v receive their
    gradient through the Gaussian. S is the number of unmasked keys of the query, i.e. the sentence length for a
    `Padding` mask; if the mask has gaps, S still counts unmasked keys, while the center is a position among all keys.
    W and v are shared by all heads.

    Args:
        query_dim: Features of a query.
        window: D, the number of keys on each side of p_t.
        hidden_dim: Size of the tanh layer; by default `query_dim`.
    """

    def __init__(self, query_dim: int, window: int, hidden_dim: int | None = None) -> None:
        super().__init__()
        if window < 1:
            raise InputError(f"window must be 1 or more, not {window}")
        hidden_dim = query_dim if hidden_dim is None else hidden_dim
        self.query_dim, self.window, self.hidden_dim = query_dim, window, hidden_dim
        self.weight = uniform_parameter((query_dim, hidden_dim), inputs=query_dim)  # W
        self.vector = uniform_parameter((hidden_dim,), inputs=hidden_dim)  # v

    @classmethod
    def from_sizes(cls, sizes: Sizes, *, window: Size = WINDOW) -> "LocalPredictive":  # D, keys on each side of p_t
        return cls(sizes.query, window)

    def centre(
        self, query: Queries, sizes: int | Int[Tensor, "#batch #heads #query"]
    ) -> Float[Tensor, "batch heads query"]:
        """p_t among `sizes` keys, at least in float32: bfloat16 cannot represent all positions above 256."""
        if query.shape[-1] != self.weight.shape[0]:
            raise ShapeError(
                f"LocalPredictive expects queries of {self.weight.shape[0]} features, not {query.shape[-1]}"
            )
        logit = torch.tanh(query @ self.weight) @ self.vector
        return sizes * at_least_float32(logit).sigmoid()

    def compute_weights(self, inputs: AlignInput) -> Weights:
        scores, allowed, query, shape = inputs
        sizes = shape.keys if allowed is None else allowed.expand(*allowed.shape[:3], shape.keys).sum(dim=-1)
        distance = CellIndex(shape).key - self.centre(query, sizes).unsqueeze(-1)  # s - p_t
        gaussian = torch.exp(-2.0 * (distance / self.window).square())  # with sigma = D / 2
        return masked_softmax(distance.abs() <= self.window, scores) * gaussian.to(scores.dtype)


def masked_softmax(allowed: Allowed, scores: Scores) -> Weights:
    """Softmax over the allowed keys; the others get exactly 0, also in rows without any allowed key."""
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~allowed, lowest).softmax(dim=-1).masked_fill(~allowed, 0.0)


def apply_temperature(scores: Scores, temperature: float, allowed: Allowed | None) -> Scores:
    """Return scores / T, with masked scores kept at the lowest finite value: softmax of a row of -inf is NaN."""
    if temperature == 1.0:
        return scores
    scores = scores / temperature
    return scores if allowed is None else scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
