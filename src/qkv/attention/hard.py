"""Hard attention: each query attends to a single key (Xu et al. 2015).

A discrete choice has no gradient, so training needs an estimator. With p = softmax(s) and a one-hot choice z:

    straight-through    z is the argmax; the backward pass uses p
    gumbel              z is the argmax after noise; the backward pass uses softmax((s + noise) / T) (Jang et al. 2017)
    reinforce           z is sampled from p and rewarded afterwards (Williams 1992); in expectation

        d E[R] / ds = E[(R - b) d log p(z) / ds] = E[(R - b) (z - p)]

    for any baseline b that does not depend on z: the closer b is to the expected reward, the lower the variance.
"""

import math
from typing import Any, Literal, NamedTuple, final

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.align import Align, AlignInput, apply_temperature
from qkv.attention.precision import at_least_float32
from qkv.attention.score import Sizes
from qkv.attention.score_shape import Allowed, Queries, Scores, Weights
from qkv.config import NonNegativeFloat, PositiveFloat, Probability, Rate
from qkv.errors import InputError, ShapeError
from qkv.registry import nearest, register
from qkv.types import Bool, Float, Int, Tensor

ESTIMATORS = ("straight-through", "gumbel", "reinforce")
BASELINES = ("moving-average", "learned")

PerQuery = Float[Tensor, "batch heads query"]


class Surrogate(NamedTuple):
    """Surrogate loss whose gradient estimates that of the expected reward, and the variance of the estimate."""

    loss: Float[Tensor, ""]
    variance: Float[Tensor, ""]  # of the estimates (R - b) (z - p) over the samples, summed over the keys


class Draws(NamedTuple):
    """Sampled choices of one call, or of several concatenated calls."""

    log_probability: PerQuery  # log p(z)
    entropy: PerQuery  # of p
    score_grad: Scores  # z - p, the gradient of log p(z) with respect to the scores
    expected: PerQuery  # b
    valid: Bool[Tensor, "batch heads query"]  # false for fully masked queries


@final
@register("align", "hard")
class Hard(nn.Module, Align):
    """One key per query: the argmax in evaluation, and a choice with a gradient estimator in training.

    With "reinforce", the module keeps the samples of each training call until `loss` is called with their reward. With
    `anneal`, soft attention becomes hard during this fraction of the training, with the weights

        a = (1 - h) p + h z,   h = min(1, done / anneal)

    `set_progress` sets `done`, the fraction of the training that is over; without it, h is 1.

    Args:
        estimator: Gradient estimator: "straight-through", "gumbel" or "reinforce".
        temperature: Temperature of the softmax ("gumbel" only).
        baseline: Baseline of the reward: "moving-average", "learned" or None ("reinforce" only).
        decay: Decay of the moving average ("reinforce" only).
        query_dim: Features of a query, for the learned baseline ("reinforce" only).
        entropy: Weight of an entropy bonus ("reinforce" only).
        discount: Discount factor of future rewards ("reinforce" only), for tasks that reward a step for all later
            ones: 1 is unbiased; smaller values reduce the variance but ignore long-term effects.
        anneal: Fraction of the training in which soft attention becomes hard (not for "reinforce").
    """

    def __init__(
        self,
        estimator: str = "straight-through",
        *,
        temperature: float = 1.0,
        baseline: str | None = "moving-average",
        decay: float = 0.9,
        query_dim: int | None = None,
        entropy: float = 0.0,
        discount: float = 1.0,
        anneal: float = 0.0,
    ) -> None:
        super().__init__()
        if estimator not in ESTIMATORS:
            raise InputError(f"unknown estimator {estimator!r}{nearest(estimator, ESTIMATORS)}")
        if not temperature > 0:
            raise InputError(f"temperature must be positive, not {temperature}")
        if not 0 <= entropy < math.inf:
            raise InputError(f"entropy must be 0 or more, and finite, not {entropy}")
        if not 0 <= discount <= 1:
            raise InputError(f"discount must lie in [0, 1], not {discount}")
        if not 0 <= anneal <= 1:
            raise InputError(f"anneal must lie in [0, 1], not {anneal}")
        self.estimator = estimator
        self.temperature = temperature
        self.entropy = entropy
        self.discount = discount
        self.anneal = anneal
        self.hardness: Tensor | None  # h
        # A tensor, since CUDA graphs would keep the value of a number.
        self.register_buffer("hardness", torch.ones(()) if anneal else None, persistent=False)
        self.baseline = _baseline(baseline, decay, query_dim) if estimator == "reinforce" else None
        self._draws: list[Draws] = []  # since the last loss

    @classmethod
    def from_sizes(
        cls,
        sizes: Sizes,
        *,
        estimator: Literal["straight-through", "gumbel", "reinforce"] = "straight-through",  # gradient estimator
        temperature: PositiveFloat = 1.0,  # gumbel: temperature of the softmax
        baseline: Literal["moving-average", "learned", "none"] = "moving-average",  # reinforce: baseline of the reward
        decay: Rate = 0.9,  # reinforce: decay of the moving average
        entropy: NonNegativeFloat = 0.0,  # reinforce: weight of an entropy bonus
        discount: Probability = 1.0,  # reinforce: discount factor of future rewards
        anneal: Probability = 0.0,  # not reinforce: fraction of the training in which soft attention becomes hard
    ) -> "Hard":
        if estimator == "reinforce" and anneal:
            raise InputError("anneal does not apply to estimator = 'reinforce'")
        if estimator != "reinforce" and (baseline != "moving-average" or entropy or discount != 1.0):
            raise InputError("baseline, entropy and discount apply to estimator = 'reinforce' only")
        return cls(
            estimator,
            temperature=temperature,
            baseline=None if baseline == "none" else baseline,
            decay=decay,
            query_dim=sizes.query,
            entropy=entropy,
            discount=discount,
            anneal=anneal,
        )

    def set_progress(self, done: float) -> None:
        """Set the fraction of the training that is over, on which annealed attention depends."""
        if self.hardness is not None:
            self.hardness.fill_(min(1.0, done / self.anneal))

    def compute_weights(self, inputs: AlignInput) -> Weights:
        scores = at_least_float32(inputs.scores)
        if self.selects_one_key():
            weights = one_hot(self.select_keys(inputs), scores)
        elif self.estimator == "straight-through":
            weights = self._anneal(scores.softmax(dim=-1), one_hot(scores.argmax(dim=-1), scores))
        else:
            noisy = scores + _gumbel_noise(scores)
            soft = apply_temperature(noisy, self.temperature, inputs.allowed).softmax(dim=-1)
            weights = self._anneal(soft, one_hot(noisy.argmax(dim=-1), scores))
        return weights.to(inputs.scores.dtype)

    def _anneal(self, soft: Weights, choice: Weights) -> Weights:
        """Return (1 - h) p + h z, with the gradient of p."""
        if self.hardness is not None:
            choice = torch.lerp(soft.detach(), choice, self.hardness.to(soft.dtype))
        return _straight_through(soft, choice)

    def selects_one_key(self) -> bool:
        return not self.training or self.estimator == "reinforce" or not torch.is_grad_enabled()

    def select_keys(self, inputs: AlignInput) -> Int[Tensor, "batch heads query"]:
        scores = at_least_float32(inputs.scores)
        if not self.training or self.estimator == "straight-through":
            return scores.argmax(dim=-1)
        chosen = (scores + _gumbel_noise(scores)).argmax(dim=-1)  # a sample from p (Gumbel-max trick)
        if self.estimator == "reinforce" and torch.is_grad_enabled() and not in_backward():
            self._store_draws(scores, one_hot(chosen, scores), inputs.allowed, inputs.query)
        return chosen

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_draws": []}  # copies start without samples

    def loss(
        self,
        reward: Float[Tensor, "batch"] | Float[Tensor, "batch query"],
        mask: Bool[Tensor, "batch query"] | None = None,
        steps: Float[Tensor, "batch query"] | None = None,
    ) -> Surrogate:
        """Return the surrogate loss of the samples since the last call, given their reward (higher is better).

            loss = -(R - b) log p(z) - entropy H(p), summed over heads and queries, averaged over the batch

        plus (R - b)^2 for a learned baseline. The reward is given per batch row or per query; the queries of several
        calls are concatenated. `mask` is false for queries to ignore, such as steps beyond the end.

        If the reward is a sum over `steps` remaining steps, the baseline estimates the reward per step and b is that
        times the number of steps, which is known before sampling, so the estimate stays unbiased.
        """
        if not self._draws:
            raise InputError(
                "there are no samples to reward: call loss() after a forward pass in training mode with gradients "
                f'enabled and estimator="reinforce" (not {self.estimator!r})'
            )
        draws = _concatenate(self._draws)
        batch, _, queries = draws.valid.shape
        if tuple(reward.shape) not in ((batch,), (batch, queries)):
            raise ShapeError(
                f"reward has shape {list(reward.shape)}, but must be {[batch]} [batch] or "
                f"{[batch, queries]} [batch, query], for the queries of all calls since the last loss()"
            )
        for name, tensor in (("mask", mask), ("steps", steps)):
            if tensor is not None and tuple(tensor.shape) != (batch, queries):
                raise ShapeError(f"{name} has shape {list(tensor.shape)}, not {[batch, queries]} [batch, query]")
        self._draws = []

        valid = draws.valid if mask is None else draws.valid & mask[:, None]
        count = valid.sum().clamp(min=1)
        reward = reward.to(draws.expected.dtype).view(batch, 1, -1).expand_as(draws.expected).detach()
        step_count = torch.ones_like(reward) if steps is None else steps.to(reward.dtype)[:, None].clamp(min=1.0)
        advantage = reward - (draws.expected * step_count).detach()
        loss = -advantage * draws.log_probability - self.entropy * draws.entropy
        if self.baseline is not None:
            loss = loss + self.baseline.update(reward / step_count, draws.expected, valid)
        rows = valid.unsqueeze(-1)
        estimates = advantage.unsqueeze(-1) * draws.score_grad
        mean = estimates.masked_fill(~rows, 0.0).sum(dim=(0, 1, 2)) / count
        return Surrogate(
            loss=loss.masked_fill(~valid, 0.0).sum() / batch,
            variance=(estimates - mean).square().masked_fill(~rows, 0.0).sum() / (count - 1).clamp(min=1),
        )

    def _store_draws(
        self,
        scores: Scores,
        choice: Weights,
        allowed: Allowed | None,
        query: Queries,
    ) -> None:
        log_p, valid = scores.log_softmax(dim=-1), torch.ones_like(scores[..., 0], dtype=torch.bool)
        if allowed is not None:  # masked keys contribute p log p = 0, also if chosen in a fully masked row
            log_p, valid = log_p.masked_fill(~allowed, 0.0), valid & allowed.any(dim=-1)
        p = scores.softmax(dim=-1)
        expected = valid.new_zeros(valid.shape) if self.baseline is None else self.baseline(query)
        self._draws.append(
            Draws(
                log_probability=(choice * log_p).sum(dim=-1),
                entropy=-(p * log_p).sum(dim=-1),
                score_grad=(choice - p).detach(),
                expected=expected.to(scores.dtype),
                valid=valid,
            )
        )


@final
class MovingAverage(nn.Module):
    """b = decay b + (1 - decay) R, over the training steps, with bias correction."""

    total: Float[Tensor, ""]
    mass: Float[Tensor, ""]  # total weight of the average, from 0 toward 1

    def __init__(self, decay: float) -> None:
        super().__init__()
        if not 0.0 <= decay < 1.0:
            raise InputError(f"decay must be in [0, 1), not {decay}")
        self.decay = decay
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("mass", torch.zeros(()))

    def forward(self, query: Queries) -> PerQuery:
        return (self.total / self.mass.where(self.mass > 0, 1.0)).expand(query.shape[:3])

    @torch.no_grad()
    def update(self, reward: PerQuery, expected: PerQuery, valid: Bool[Tensor, "batch heads query"]) -> Tensor:
        """Update the average with the observed rewards; it adds 0 to the loss."""
        count = valid.sum()
        mean = reward.masked_fill(~valid, 0.0).sum() / count.clamp(min=1)
        rate = (1.0 - self.decay) * (count > 0).to(self.mass.dtype)
        self.total.lerp_(mean.to(self.total.dtype), rate)
        self.mass.lerp_(torch.ones_like(self.mass), rate)
        return torch.zeros_like(mean)


@final
class LearnedBaseline(nn.Module):
    """b = w . q + c, fitted to the rewards by least squares; no gradient flows into the queries."""

    def __init__(self, query_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(query_dim, 1)
        nn.init.zeros_(self.linear.weight)  # the initial estimate is 0
        nn.init.zeros_(self.linear.bias)

    def forward(self, query: Queries) -> PerQuery:
        return self.linear(query.detach()).squeeze(-1)

    def update(self, reward: PerQuery, expected: PerQuery, valid: Bool[Tensor, "batch heads query"]) -> PerQuery:
        """Return the squared error of each query, which is added to the loss."""
        return (reward - expected).square()


def _baseline(name: str | None, decay: float, query_dim: int | None) -> MovingAverage | LearnedBaseline | None:
    if name is None:
        return None
    if name == "moving-average":
        return MovingAverage(decay)
    if name != "learned":
        raise InputError(f"unknown baseline {name!r}{nearest(name, BASELINES)}; use None for no baseline")
    if query_dim is None:
        raise InputError("a learned baseline needs query_dim")
    return LearnedBaseline(query_dim)


def in_backward() -> bool:
    """Whether a backward pass is running: a forward pass inside it recomputes an activation checkpoint."""
    return torch._C._current_graph_task_id() != -1


def one_hot(chosen: Int[Tensor, "batch heads query"], scores: Scores) -> Weights:
    """Weight 1 for the chosen key of each query, and 0 for the others, with the shape and dtype of the scores."""
    return torch.zeros_like(scores).scatter(-1, chosen.unsqueeze(-1), 1.0)


def _straight_through(soft: Weights, choice: Weights) -> Weights:
    """Return the choice exactly, with the gradient of the soft weights."""
    return choice + (soft - soft.detach())


def _gumbel_noise(scores: Scores) -> Scores:
    """Gumbel noise, clamped to finite values so that a masked key cannot win."""
    return -torch.empty_like(scores).exponential_().clamp_(min=torch.finfo(scores.dtype).tiny).log()


def _concatenate(calls: list[Draws]) -> Draws:
    """Concatenate the samples of several calls along the queries, zero-padding the keys if their number grew."""
    if len({call.valid.shape[:2] for call in calls}) > 1:
        raise ShapeError("the calls since the last loss() differ in batch or heads: call loss() after each of them")
    keys = max(call.score_grad.shape[-1] for call in calls)
    calls = [call._replace(score_grad=F.pad(call.score_grad, (0, keys - call.score_grad.shape[-1]))) for call in calls]
    return Draws(*(torch.cat(parts, dim=2) for parts in zip(*calls, strict=True)))
