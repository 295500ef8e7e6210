"""Bernoulli multi-armed bandits: each arm has reward 1 with its own probability, else 0.

The probabilities are sampled uniformly from [0, 1) for each game, together with the reward of every arm at every pull.
They depend only on the seed and the index of the game, so that policies can be compared on the same games.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Float32, Float64
from numpy import ndarray
from pydantic import Field

from qkv.datasets.columns import Column
from qkv.datasets.counter_rng import CounterRNG
from qkv.datasets.dataset import GENERATED, BanditDataset, DatasetConfig
from qkv.registry import register


@dataclass(frozen=True)
class Games:
    """A batch of games."""

    win_probs: Float64[ndarray, "batch arms"]  # hidden from the player
    rewards: Float32[ndarray, "batch pulls arms"]  # 1 or 0, for each arm if it were pulled at this step
    uniform: Float32[ndarray, "batch pulls arms"]  # random numbers in [0, 1) for stochastic policies


@dataclass(frozen=True)
class Bandits:
    """A distribution of games with a fixed number of arms and pulls."""

    arms: int
    pulls: int

    def sample(self, seed: int, indices: Sequence[int]) -> Games:
        """Sample the games with these indices."""
        rng = CounterRNG(seed, indices)
        win_probs = rng.uniform(self.arms)
        rewards = rng.uniform(self.pulls, self.arms) < win_probs[:, None]
        uniform = rng.uniform(self.pulls, self.arms)
        return Games(win_probs, rewards.astype(np.float32), uniform.astype(np.float32))


@register("dataset", "bandits")
class BernoulliBandits(DatasetConfig):
    """Bernoulli multi-armed bandits; games are generated in every epoch."""

    summary = "Bernoulli multi-armed bandits (data.arms, data.pulls; synthetic)"
    license = GENERATED
    dataset_class = BanditDataset
    columns = (
        Column("reward", "reward per game", digits=3),
        Column("margin", "±", digits=3, higher_is_better=False),
        Column("gittins", "Gittins", digits=3),
        Column("ucb", "UCB1", digits=3),
        Column("thompson", "Thompson", digits=3),
        Column("random", "random", digits=3),
    )
    remarks: ClassVar = {
        "": "All policies play the same games. Gittins: the arm with the largest index for the remaining pulls."
    }

    size: None = None  # not used: games are generated in every epoch
    arms: Annotated[int, Field(ge=2, le=1024)] = 5  # number of arms
    pulls: Annotated[int, Field(ge=1, le=1024)] = 10  # pulls per game

    def read(self) -> BanditDataset:
        return BanditDataset(dict.fromkeys(("train", "valid", "test"), Bandits(self.arms, self.pulls)))
