"""Baseline bandit policies: random, Thompson sampling, UCB and the Gittins index.

An arm with a successes and b failures has the posterior Beta(1 + a, 1 + b): the prior is uniform.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from qkv.datasets.corpora.synthetic.bandits import Bandits, Games

GRID = 201  # number of constant rewards an arm is compared with for its Gittins index
# Value of each arm, from its successes and failures and the number of pulls left.
Policy = Callable[[Int64[ndarray, "batch arms"], Int64[ndarray, "batch arms"], int], Float64[ndarray, "batch arms"]]


def play(games: Games, policy: Policy) -> Float32[ndarray, "batch"]:
    """Reward per game of a greedy player of the policy's values; ties are broken at random."""
    batch, pulls, arms = games.rewards.shape
    rows = np.arange(batch)
    paid, failed = (np.zeros((batch, arms), dtype=np.int64) for _ in range(2))
    for pull in range(pulls):
        values = policy(paid, failed, pulls - pull)
        best = values == values.max(axis=1, keepdims=True)
        arm = (best * (1 + games.uniform[:, pull])).argmax(axis=1)
        pays = games.rewards[rows, pull, arm]
        paid[rows, arm] += pays > 0
        failed[rows, arm] += pays == 0
    return paid.sum(axis=1).astype(np.float32)


def baselines(bandits: Bandits) -> dict[str, Policy]:
    """The baseline policies by name."""
    index, rng = gittins_index(bandits.pulls), np.random.default_rng(0)

    def random(paid: ndarray, failed: ndarray, left: int) -> ndarray:
        return np.zeros(paid.shape)

    def thompson(paid: ndarray, failed: ndarray, left: int) -> ndarray:
        """A sample from each arm's posterior (Thompson 1933)."""
        return rng.beta(1 + paid, 1 + failed)

    def ucb(paid: ndarray, failed: ndarray, left: int) -> ndarray:
        """Every arm once, then its mean plus an exploration bonus (UCB1: Auer et al. 2002)."""
        tried = paid + failed
        trials = np.maximum(tried, 1)
        bound = paid / trials + np.sqrt(2 * math.log(max(1, bandits.pulls - left)) / trials)
        return np.where(tried == 0, math.inf, bound)

    def gittins(paid: ndarray, failed: ndarray, left: int) -> ndarray:
        return index[left, paid + failed, paid]

    return {"random": random, "thompson": thompson, "ucb": ucb, "gittins": gittins}


@cache
def gittins_index(pulls: int) -> Float64[ndarray, "left tried paid"]:
    """The Gittins index of an arm by the pulls left, the number of trials and of successes (Gittins 1979).

    With a constant reward l available for each remaining pull instead, the arm is worth, h pulls before the end,

        V_h = max(l h, p (1 + V_{h-1} of one success more) + (1 - p) V_{h-1} of one failure more),   p = (a+1) / (a+b+2)

    and its index is the l at which both are equal, interpolated between grid points.
    """
    constants = np.linspace(0.0, 1.0, GRID)
    size = pulls + 1
    tried, paid = np.ogrid[:size, :size]
    p = ((paid + 1) / (tried + 2))[..., None]  # tried paid 1
    index = np.zeros((size, size, size))
    values = np.zeros((size + 1, size + 1, GRID))  # V_0, padded by one trial and one success
    for left in range(1, size):
        pull_value = p * (1 + values[1:, 1:]) + (1 - p) * values[1:, :-1]
        gain = pull_value - constants * left  # decreases with l
        crossing = np.clip((gain > 0).sum(axis=-1) - 1, 0, GRID - 2)[..., None]
        before, after = (np.take_along_axis(gain, crossing + step, axis=-1)[..., 0] for step in (0, 1))
        fraction = np.clip(before / np.maximum(before - after, 1e-12), 0.0, 1.0)
        index[left] = (crossing[..., 0] + fraction) / (GRID - 1)
        values[:-1, :-1] = np.maximum(pull_value, constants * left)
    return index
