"""Counter-based random numbers: an independent stream for each (seed, index), all advanced together."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64, UInt64
from numpy import ndarray

# SplitMix64 (Steele, Lea and Flood 2014): output i of a stream is mix(start + i * GOLDEN).
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class CounterRNG:
    """A batch of random streams, one for each index."""

    def __init__(self, seed: int, indices: Sequence[int]) -> None:
        self._start = mix_bits(mix_bits(np.array([seed], dtype=np.uint64)) + np.array(indices, dtype=np.uint64))
        self._counter = 0

    def uniform(self, *shape: int) -> Float64[ndarray, "batch ..."]:
        """Sample uniform floats in [0, 1), of this shape for each stream."""
        count = int(np.prod(shape))
        steps = np.arange(self._counter + 1, self._counter + count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        self._counter += count
        bits = mix_bits(self._start[:, None] + steps)
        return ((bits >> np.uint64(11)) * 2.0**-53).reshape(-1, *shape)

    def integers(self, high: int, count: int) -> Int64[ndarray, "batch count"]:
        """Sample `count` integers in [0, high)."""
        return (self.uniform(count) * high).astype(np.int64)

    def permutations(self, rows: int, count: int) -> Int64[ndarray, "batch rows count"]:
        """Sample a permutation of range(count) for each row."""
        return self.uniform(rows, count).argsort(axis=-1)

    def shuffle(self, values: Int64[ndarray, "batch count"]) -> Int64[ndarray, "batch count"]:
        """Return the values of each stream in random order."""
        return np.take_along_axis(values, self.permutations(1, values.shape[1])[:, 0], axis=1)

    def choice(self, high: int, count: int) -> Int64[ndarray, "batch count"]:
        """Sample `count` distinct integers below `high`, not in random order (Floyd's algorithm, Bentley 1987)."""
        uniform = self.uniform(count)
        chosen = np.empty((len(uniform), count), dtype=np.int64)
        for index, last in enumerate(range(high - count, high)):
            candidate = (uniform[:, index] * (last + 1)).astype(np.int64)
            taken = (chosen[:, :index] == candidate[:, None]).any(axis=1)
            chosen[:, index] = np.where(taken, last, candidate)
        return chosen


def mix_bits(state: UInt64[ndarray, "*shape"]) -> UInt64[ndarray, "*shape"]:
    """Finalizer of SplitMix64: every output bit depends on every state bit."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
    state = (state ^ (state >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return state ^ (state >> np.uint64(31))
