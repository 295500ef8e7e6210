"""Alignments: from the scores of a query to the weights of its keys."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import nn

from qkv.attention.extent import Cells, Extent, Places
from qkv.attention.mask import Mask
from qkv.attention.precision import at_least_float32
from qkv.errors import InputError, ShapeError
from qkv.types import Bool, Float, Int, Tensor


class SoftmaxForm(NamedTuple):
    """An alignment as the fused kernels can compute it: a softmax of scores / temperature, over the keys of a mask."""

    temperature: float = 1.0
    mask: Mask | None = None


class Scored(NamedTuple):
    """What an alignment may look at. Keys that the mask forbids come with the lowest finite score."""

    scores: Float[Tensor, "batch heads query key"]
    allowed: Bool[Tensor, "#batch #heads #query #key"] | None  # what may be seen; None: everything
    query: Float[Tensor, "batch heads query dim"]
    extent: Extent


class Align(ABC):
    """Turns scores into weights."""

    clears_the_lowest = False  # whether a key with the lowest score gets weight 0 exactly, if another is seen

    @abstractmethod
    def weigh(self, scored: Scored) -> Float[Tensor, "batch heads query key"]:
        """The weights of each query; those of keys that the mask forbids are set to zero afterwards."""

    def as_softmax(self) -> SoftmaxForm | None:
        """How a fused softmax computes these weights; None where it cannot."""
        return None


@final
class Softmax(Align):
    """exp(s / T) / sum exp(s / T): every key gets a share (soft attention)."""

    clears_the_lowest = True

    def __init__(self, temperature: float = 1.0) -> None:
        if not temperature > 0:
            raise InputError(f"temperature must be positive, not {temperature}")
        self.temperature = temperature

    def weigh(self, scored: Scored) -> Float[Tensor, "batch heads query key"]:
        return torch.softmax(cooled(scored.scores, self.temperature, scored.allowed), dim=-1)

    def as_softmax(self) -> SoftmaxForm:
        return SoftmaxForm(self.temperature)


@final
class Uniform(Align):
    """1 / n for each of the n keys that are seen, whatever they score: mean pooling."""

    clears_the_lowest = True

    def weigh(self, scored: Scored) -> Float[Tensor, "batch heads query key"]:
        return torch.softmax(cooled(scored.scores, math.inf, scored.allowed), dim=-1)

    def as_softmax(self) -> SoftmaxForm:
        return SoftmaxForm(temperature=math.inf)


@final
@dataclass(frozen=True)
class AroundStep(Mask):
    """A query sees the keys at most so many places from its own time step, on both sides."""

    window: int

    def allows(self, at: Places) -> Bool[Tensor, "..."]:
        return (at.key - at.step).abs() <= self.window


@final
class LocalMonotonic(Align):
    """softmax over the keys in [t - D, t + D], at time step t: local-m (Luong, Pham and Manning 2015).

    The first query of a call is at the step that `attend` is given as `start`, or at step 0. A step so late that no
    key is left in its window reads zeros.
    """

    def __init__(self, window: int) -> None:
        if window < 0:
            raise InputError(f"a window reaches 0 or more keys to each side, not {window}")
        self.window = window

    def weigh(self, scored: Scored) -> Float[Tensor, "batch heads query key"]:
        return softmax_among(AroundStep(self.window).allows(Cells(scored.extent)), scored.scores)

    def as_softmax(self) -> SoftmaxForm:
        return SoftmaxForm(mask=AroundStep(self.window))


@final
class LocalPredictive(nn.Module, Align):
    """Softmax in a window around a place that the query predicts: local-p (Luong, Pham and Manning 2015).

        p_t = S sigmoid(v . tanh(W q_t))                               the centre, among S keys numbered from 0
        a_ts = softmax(s : |s - p_t| <= D) exp(-(s - p_t)^2 / (2 sigma^2)),   sigma = D / 2

    As in the paper, the weights are not normalised again after the Gaussian: they sum to at most 1. It is through the
    Gaussian that W and v learn. S is the number of keys that the query may see, so it is the length of the sentence
    where the mask is `Padding`; where a mask has holes, S counts what may be seen, and the centre is still a place
    among all keys. W and v serve all heads.
    """

    def __init__(self, query_dim: int, window: int, hidden_dim: int | None = None) -> None:
        super().__init__()
        if window < 1:
            raise InputError(f"a predicted window reaches 1 or more keys to each side, not {window}")
        hidden_dim = query_dim if hidden_dim is None else hidden_dim
        self.window = window
        self.weight = nn.Parameter(torch.empty(query_dim, hidden_dim))  # W
        self.vector = nn.Parameter(torch.empty(hidden_dim))  # v
        for parameter, inputs in ((self.weight, query_dim), (self.vector, hidden_dim)):
            bound = 1.0 / math.sqrt(max(inputs, 1))
            nn.init.uniform_(parameter, -bound, bound)

    def centre(
        self, query: Float[Tensor, "batch heads query dim"], sizes: int | Int[Tensor, "#batch #heads #query"]
    ) -> Float[Tensor, "batch heads query"]:
        """p_t, among so many keys; in float32 at least, for bfloat16 cannot tell place 257 from 258."""
        if query.shape[-1] != self.weight.shape[0]:
            raise ShapeError(
                f"LocalPredictive was made for a query of {self.weight.shape[0]} features, but it has {query.shape[-1]}"
            )
        share = torch.tanh(query @ self.weight) @ self.vector
        return sizes * at_least_float32(share).sigmoid()

    def weigh(self, scored: Scored) -> Float[Tensor, "batch heads query key"]:
        scores, allowed, query, extent = scored
        sizes = extent.keys if allowed is None else allowed.expand(*allowed.shape[:3], extent.keys).sum(dim=-1)
        distance = Cells(extent).key - self.centre(query, sizes).unsqueeze(-1)  # s - p_t
        gaussian = torch.exp(-2.0 * (distance / self.window).square())  # with sigma = D / 2
        return softmax_among(distance.abs() <= self.window, scores) * gaussian.to(scores.dtype)


def softmax_among(
    near: Bool[Tensor, "#batch #heads #query #key"], scores: Float[Tensor, "batch heads query key"]
) -> Float[Tensor, "batch heads query key"]:
    """softmax over the near keys; the others get exactly nothing, also in a row that has none near."""
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~near, lowest).softmax(dim=-1).masked_fill(~near, 0.0)


def cooled(
    scores: Float[Tensor, "batch heads query key"],
    temperature: float,
    allowed: Bool[Tensor, "#batch #heads #query #key"] | None,
) -> Float[Tensor, "batch heads query key"]:
    """scores / T, forbidden ones still at the lowest finite number: a row of nothing but -inf has no softmax."""
    if temperature == 1.0:
        return scores
    scores = scores / temperature
    return scores if allowed is None else scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
