"""Random numbers that a seed and a number decide alone: a stream of them for each number, all drawn from together."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64, UInt64
from numpy import ndarray

# SplitMix64 (Steele, Lea and Flood 2014): number i of a stream is mixed from its beginning + i * GOLDEN.
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class Chance:
    """A stream of random numbers for each of some numbers."""

    def __init__(self, seed: int, numbers: Sequence[int]) -> None:
        self._begin = _mixed(_mixed(np.array([seed], dtype=np.uint64)) + np.array(numbers, dtype=np.uint64))
        self._drawn = 0

    def uniform(self, *shape: int) -> Float64[ndarray, "batch ..."]:
        """Numbers from 0 to 1, of this shape for each stream."""
        count = int(np.prod(shape))
        steps = np.arange(self._drawn + 1, self._drawn + count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        self._drawn += count
        bits = _mixed(self._begin[:, None] + steps)
        return ((bits >> np.uint64(11)) * 2.0**-53).reshape(-1, *shape)

    def below(self, limit: int, count: int) -> Int64[ndarray, "batch count"]:
        """Whole numbers below a limit."""
        return (self.uniform(count) * limit).astype(np.int64)

    def order(self, rows: int, count: int) -> Int64[ndarray, "batch rows count"]:
        """The numbers from 0 to count - 1, shuffled in each row."""
        return self.uniform(rows, count).argsort(axis=-1)

    def ordered(self, values: Int64[ndarray, "batch count"]) -> Int64[ndarray, "batch count"]:
        """The values of each stream, shuffled."""
        return np.take_along_axis(values, self.order(1, values.shape[1])[:, 0], axis=1)

    def choose(self, among: int, count: int) -> Int64[ndarray, "batch count"]:
        """So many different numbers below `among`, in no order to rely on (Floyd's way: Bentley and Floyd 1987)."""
        drawn = self.uniform(count)
        chosen = np.empty((len(drawn), count), dtype=np.int64)
        for place, last in enumerate(range(among - count, among)):
            found = (drawn[:, place] * (last + 1)).astype(np.int64)
            taken = (chosen[:, :place] == found[:, None]).any(axis=1)
            chosen[:, place] = np.where(taken, last, found)
        return chosen


def _mixed(state: UInt64[ndarray, "*shape"]) -> UInt64[ndarray, "*shape"]:
    """The finisher of SplitMix64: every bit of what comes out depends on every bit of the state."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
    state = (state ^ (state >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return state ^ (state >> np.uint64(31))
