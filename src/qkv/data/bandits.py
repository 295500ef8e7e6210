"""Bandits: some arms, each of which pays 1 with a probability of its own and else nothing, and a number of pulls.

The probabilities are drawn anew for each game, evenly between 0 and 1. What each arm would pay at each pull is drawn
with them, by the seed and the number of the game alone: all players can be watched in the same games.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64
from numpy import ndarray

from qkv.config import require
from qkv.data.chance import Chance


@dataclass(frozen=True)
class Games:
    """Some games."""

    chances: Float64[ndarray, "batch arms"]  # how often an arm pays; no player knows
    pays: Float32[ndarray, "batch pulls arms"]  # 1 or 0: what an arm brings who pulls it then
    luck: Float32[ndarray, "batch pulls arms"]  # from 0 to 1: for players who draw lots


@dataclass(frozen=True)
class Bandits:
    """Games of one kind."""

    arms: int
    pulls: int

    def __post_init__(self) -> None:
        require(2 <= self.arms <= 1024, "a bandit has between 2 and 1,024 arms")
        require(1 <= self.pulls <= 1024, "a game has between 1 and 1,024 pulls")

    def draw(self, seed: int, numbers: Sequence[int]) -> Games:
        """The games of these numbers."""
        chance = Chance(seed, numbers)
        chances = chance.uniform(self.arms)
        pays = chance.uniform(self.pulls, self.arms) < chances[:, None]
        luck = chance.uniform(self.pulls, self.arms)
        return Games(chances, pays.astype(np.float32), luck.astype(np.float32))
