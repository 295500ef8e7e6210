"""Hard attention: all of a query's weight on one key (Xu et al. 2015).

A choice has no slope, so training needs an estimate of the gradient. With p = softmax(s) and a one-hot choice z:

    straight-through    z is the best key; backward, as if the weights had been p
    gumbel              z is the best key after noise; backward, as if softmax((s + noise) / T) (Jang et al. 2017)
    reinforce           z is drawn from p; what it led to is rewarded afterwards (Williams 1992), and on average

        d E[R] / ds = E[(R - b) d log p(z) / ds] = E[(R - b) (z - p)]

    for any baseline b that does not know z: the nearer b is to the reward that was to be expected, the less the
    estimate varies.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, final

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.align import Align, Scored, cooled
from qkv.attention.precision import at_least_float32
from qkv.attention.replay import in_backward
from qkv.config import nearest
from qkv.errors import InputError, ShapeError
from qkv.types import Bool, Float, Tensor

ESTIMATORS = ("straight-through", "gumbel", "reinforce")
BASELINES = ("moving-average", "learned")


class Surrogate(NamedTuple):
    """What to add to the training loss, whose gradient estimates that of the expected reward, and how good it is."""

    loss: Float[Tensor, ""]
    variance: Float[Tensor, ""]  # of the estimates (R - b) (z - p) over the draws, summed over the keys
    baseline: Float[Tensor, ""]  # b, averaged over the draws
    advantage: Float[Tensor, ""]  # R - b, averaged over the draws


class Draws(NamedTuple):
    """The choices of one call, or of several one after another."""

    log_probability: Float[Tensor, "batch heads query"]  # log p(z)
    entropy: Float[Tensor, "batch heads query"]  # of p
    slope: Float[Tensor, "batch heads query key"]  # z - p, the gradient of log p(z) with respect to the scores
    expected: Float[Tensor, "batch heads query"]  # b
    made: Bool[Tensor, "batch heads query"]  # false where there was nothing to choose from


@final
class Hard(nn.Module, Align):
    """One key for each query: the best one in evaluation; in training, one that an estimator can learn from.

    With "reinforce", the module remembers the draws of each call in training until `loss` is called with the reward
    they earned. `temperature` is of "gumbel" alone; `baseline` ("moving-average", "learned" or None), `decay` (of the
    moving average), `query_dim` (of the learned baseline) and `entropy` (the weight of a bonus for staying undecided)
    are of "reinforce" alone, and so is `discount`: how much a step counts for the draws of the step before it, where a
    task rewards them for all that comes. 1 is exact; less varies less, but is blind to what a draw does much later.
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
        self.estimator = estimator
        self.temperature = temperature
        self.entropy = entropy
        self.discount = discount
        self.baseline = _baseline(baseline, decay, query_dim) if estimator == "reinforce" else None
        self._draws: list[Draws] = []  # since the last loss

    def weigh(self, scored: Scored) -> Float[Tensor, "batch heads query key"]:
        scores, allowed, query, _ = scored
        exact = at_least_float32(scores)
        if not self.training:
            weights = _best(exact)
        elif self.estimator == "straight-through":
            weights = _with_slope_of(exact.softmax(dim=-1), _best(exact))
        else:
            noisy = exact + _gumbel_noise(exact)
            weights = _best(noisy)  # a draw from p: noise of this kind makes the best key a random one, as p says
            if self.estimator == "gumbel":
                weights = _with_slope_of(cooled(noisy, self.temperature, allowed).softmax(dim=-1), weights)
            elif torch.is_grad_enabled() and not in_backward():
                self._remember(exact, weights, allowed, query)
        return weights.to(scores.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_draws": []}  # a copy has drawn nothing

    def loss(
        self,
        reward: Float[Tensor, "batch"] | Float[Tensor, "batch query"],
        counted: Bool[Tensor, "batch query"] | None = None,
        steps: Float[Tensor, "batch query"] | None = None,
    ) -> Surrogate:
        """What the draws since the last call have to learn from their reward, of which more is better.

            loss = -(R - b) log p(z) - entropy H(p), summed over heads and queries, averaged over the batch

        and, with a learned baseline, (R - b)^2 beside it. The reward is that of a whole row, or of each query; queries
        of several calls are counted one after another. `counted` leaves out queries, such as steps beyond the end.

        Where a reward is the sum of what came in some `steps`, fewer towards the end, the baseline learns what one of
        them is worth, and b is that times their number: it is known before the draw, so the estimate stays unbiased.
        """
        if not self._draws:
            raise InputError(
                "there are no draws to reward: loss() needs a forward pass before it, in training mode, with gradients "
                f'and with estimator="reinforce" (this one is {self.estimator!r})'
            )
        draws = _one_after_another(self._draws)
        batch, _, queries = draws.made.shape
        if tuple(reward.shape) not in ((batch,), (batch, queries)):
            raise ShapeError(
                f"the reward has shape {list(reward.shape)}, but the draws since the last loss() take one for each "
                f"row, {[batch]}, or one for each query of all calls, {[batch, queries]}"
            )
        for name, given in (("counted", counted), ("steps", steps)):
            if given is not None and tuple(given.shape) != (batch, queries):
                raise ShapeError(
                    f"{name} has shape {list(given.shape)}, but there were {[batch, queries]} [batch, query] draws"
                )
        self.forget()

        made = draws.made if counted is None else draws.made & counted[:, None]
        count = made.sum().clamp(min=1)
        reward = reward.to(draws.expected.dtype).view(batch, 1, -1).expand_as(draws.expected).detach()
        worth = torch.ones_like(reward) if steps is None else steps.to(reward.dtype)[:, None].clamp(min=1.0)
        expected = (draws.expected * worth).detach()
        advantage = reward - expected
        each = -advantage * draws.log_probability - self.entropy * draws.entropy
        if self.baseline is not None:
            each = each + self.baseline.learn(reward / worth, draws.expected, made)
        rows = made.unsqueeze(-1)
        estimates = advantage.unsqueeze(-1) * draws.slope
        mean = estimates.masked_fill(~rows, 0.0).sum(dim=(0, 1, 2)) / count
        return Surrogate(
            loss=each.masked_fill(~made, 0.0).sum() / batch,
            variance=(estimates - mean).square().masked_fill(~rows, 0.0).sum() / (count - 1).clamp(min=1),
            baseline=expected.masked_fill(~made, 0.0).sum() / count,
            advantage=advantage.masked_fill(~made, 0.0).sum() / count,
        )

    def forget(self) -> None:
        """Drop the draws since the last loss, as after a step that was given up."""
        self._draws = []

    def _remember(
        self,
        scores: Float[Tensor, "batch heads query key"],
        choice: Float[Tensor, "batch heads query key"],
        allowed: Bool[Tensor, "#batch #heads #query #key"] | None,
        query: Float[Tensor, "batch heads query dim"],
    ) -> None:
        log_p, made = scores.log_softmax(dim=-1), torch.ones_like(scores[..., 0], dtype=torch.bool)
        if allowed is not None:  # p log p of what is forbidden is 0, and a choice of it, in a row of nothing else, too
            log_p, made = log_p.masked_fill(~allowed, 0.0), made & allowed.any(dim=-1)
        p = scores.softmax(dim=-1)
        expected = made.new_zeros(made.shape) if self.baseline is None else self.baseline(query)
        self._draws.append(
            Draws(
                log_probability=(choice * log_p).sum(dim=-1),
                entropy=-(p * log_p).sum(dim=-1),
                slope=(choice - p).detach(),
                expected=expected.to(scores.dtype),
                made=made,
            )
        )


class Baseline(nn.Module, ABC):
    """The reward to be expected before a choice is known."""

    @abstractmethod
    def forward(self, query: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query"]:
        """The reward that each query may expect."""

    @abstractmethod
    def learn(
        self,
        reward: Float[Tensor, "batch heads query"],
        expected: Float[Tensor, "batch heads query"],
        made: Bool[Tensor, "batch heads query"],
    ) -> Float[Tensor, "*each"]:
        """Take in the rewards that came; gives what to add to the loss of each draw, for gradients to do the rest."""


@final
class MovingAverage(Baseline):
    """b = decay b + (1 - decay) R, over the steps of training; like any average, it is of what was seen so far."""

    total: Float[Tensor, ""]
    mass: Float[Tensor, ""]  # how much of the average is filled: it begins at 0 and nears 1

    def __init__(self, decay: float) -> None:
        super().__init__()
        if not 0.0 <= decay < 1.0:
            raise InputError(f"the decay of a moving average lies in [0, 1), not {decay}")
        self.decay = decay
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("mass", torch.zeros(()))

    def forward(self, query: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query"]:
        return (self.total / self.mass.where(self.mass > 0, 1.0)).expand(query.shape[:3])

    @torch.no_grad()
    def learn(
        self,
        reward: Float[Tensor, "batch heads query"],
        expected: Float[Tensor, "batch heads query"],
        made: Bool[Tensor, "batch heads query"],
    ) -> Float[Tensor, "*each"]:
        count = made.sum()
        mean = reward.masked_fill(~made, 0.0).sum() / count.clamp(min=1)
        rate = (1.0 - self.decay) * (count > 0).to(self.mass.dtype)
        self.total.lerp_(mean.to(self.total.dtype), rate)
        self.mass.lerp_(torch.ones_like(self.mass), rate)
        return torch.zeros_like(mean)


@final
class Predicted(Baseline):
    """b = w . q + c, fitted to the rewards by least squares; it does not move the queries themselves."""

    def __init__(self, query_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(query_dim, 1)
        nn.init.zeros_(self.linear.weight)  # no reward is expected before one has come
        nn.init.zeros_(self.linear.bias)

    def forward(self, query: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query"]:
        return self.linear(query.detach()).squeeze(-1)

    def learn(
        self,
        reward: Float[Tensor, "batch heads query"],
        expected: Float[Tensor, "batch heads query"],
        made: Bool[Tensor, "batch heads query"],
    ) -> Float[Tensor, "*each"]:
        return (reward - expected).square()


def _baseline(name: str | None, decay: float, query_dim: int | None) -> Baseline | None:
    if name is None:
        return None
    if name == "moving-average":
        return MovingAverage(decay)
    if name != "learned":
        raise InputError(f"unknown baseline {name!r}{nearest(name, BASELINES)}; None is for no baseline")
    if query_dim is None:
        raise InputError("a learned baseline is a function of the query: give Hard its query_dim")
    return Predicted(query_dim)


def _best(scores: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query key"]:
    """1 for the best key of each query, 0 for the others."""
    return torch.zeros_like(scores).scatter(-1, scores.argmax(dim=-1, keepdim=True), 1.0)


def _with_slope_of(
    soft: Float[Tensor, "batch heads query key"], choice: Float[Tensor, "batch heads query key"]
) -> Float[Tensor, "batch heads query key"]:
    """The choice, to the last bit; backward, the soft weights."""
    return choice + (soft - soft.detach())


def _gumbel_noise(scores: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query key"]:
    """-log of exponential noise; never infinite, or a forbidden key could win."""
    return -torch.empty_like(scores).exponential_().clamp_(min=torch.finfo(scores.dtype).tiny).log()


def _one_after_another(calls: list[Draws]) -> Draws:
    """The draws of several calls, their queries in one row; where the keys grew, early slopes end in zeros."""
    if len({call.made.shape[:2] for call in calls}) > 1:
        raise ShapeError("the calls since the last loss() differ in batch or heads: call loss() after each of them")
    keys = max(call.slope.shape[-1] for call in calls)
    calls = [call._replace(slope=F.pad(call.slope, (0, keys - call.slope.shape[-1]))) for call in calls]
    return Draws(*(torch.cat(parts, dim=2) for parts in zip(*calls, strict=True)))
