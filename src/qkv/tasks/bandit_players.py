"""Players of bandits who learn nothing between games: what a model that learned to play is compared with.

An arm that paid a times and failed b times has the posterior Beta(1 + a, 1 + b), for its probability was drawn evenly.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from qkv.data.bandits import Bandits, Games

GRID = 201  # steady payments that an arm is compared with, for its Gittins index
# How good each arm looks, by how often it paid and failed, with so many pulls left.
Rule = Callable[[Int64[ndarray, "batch arms"], Int64[ndarray, "batch arms"], int], Float64[ndarray, "batch arms"]]


def play(games: Games, rule: Rule) -> Float32[ndarray, "batch"]:
    """What a player wins in each game who always pulls the arm that looks best; luck decides between equals."""
    batch, pulls, arms = games.rewards.shape
    rows = np.arange(batch)
    paid, failed = (np.zeros((batch, arms), dtype=np.int64) for _ in range(2))
    for pull in range(pulls):
        looks = rule(paid, failed, pulls - pull)
        best = looks == looks.max(axis=1, keepdims=True)
        arm = (best * (1 + games.uniform[:, pull])).argmax(axis=1)
        pays = games.rewards[rows, pull, arm]
        paid[rows, arm] += pays > 0
        failed[rows, arm] += pays == 0
    return paid.sum(axis=1).astype(np.float32)


def rules(bandits: Bandits, seed: int = 0) -> dict[str, Rule]:
    """The players, by name."""
    index, chance = gittins_index(bandits.pulls), np.random.default_rng(seed)

    def random(paid: ndarray, failed: ndarray, left: int) -> ndarray:
        return np.zeros(paid.shape)

    def thompson(paid: ndarray, failed: ndarray, left: int) -> ndarray:
        """A draw from each arm's posterior (Thompson 1933)."""
        return chance.beta(1 + paid, 1 + failed)

    def ucb(paid: ndarray, failed: ndarray, left: int) -> ndarray:
        """Every arm once, then its mean and the more the less it was tried (UCB1: Auer et al. 2002)."""
        tried = paid + failed
        known = np.maximum(tried, 1)
        bound = paid / known + np.sqrt(2 * math.log(max(1, bandits.pulls - left)) / known)
        return np.where(tried == 0, math.inf, bound)

    def gittins(paid: ndarray, failed: ndarray, left: int) -> ndarray:
        return index[left, paid + failed, paid]

    return {"random": random, "thompson": thompson, "ucb": ucb, "gittins": gittins}


@cache
def gittins_index(pulls: int) -> Float64[ndarray, "left tried paid"]:
    """The steady payment that an arm is worth, by the pulls left, and how often it was tried and paid (Gittins 1979).

    With the payment l to be had for each pull that is left in its place, the arm is worth, h pulls before the end,

        V_h = max(l h, p (1 + V_{h-1} of one success more) + (1 - p) V_{h-1} of one failure more),   p = (a+1) / (a+b+2)

    and its index is the l at which both are the same: looked for between the points of a grid.
    """
    steady = np.linspace(0.0, 1.0, GRID)
    size = pulls + 1
    tried, paid = np.ogrid[:size, :size]
    p = ((paid + 1) / (tried + 2))[..., None]  # tried paid 1
    index = np.zeros((size, size, size))
    worth = np.zeros((size + 1, size + 1, GRID))  # V_0, with one more of each
    for left in range(1, size):
        going_on = p * (1 + worth[1:, 1:]) + (1 - p) * worth[1:, :-1]
        gain = going_on - steady * left  # falls as the payment rises
        crossing = np.clip((gain > 0).sum(axis=-1) - 1, 0, GRID - 2)[..., None]
        before, after = (np.take_along_axis(gain, crossing + step, axis=-1)[..., 0] for step in (0, 1))
        share = np.clip(before / np.maximum(before - after, 1e-12), 0.0, 1.0)
        index[left] = (crossing[..., 0] + share) / (GRID - 1)
        worth[:-1, :-1] = np.maximum(going_on, steady * left)
    return index
