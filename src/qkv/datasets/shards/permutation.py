"""Pseudo-random permutations that are computed, not stored: any element in constant time and memory."""

import hashlib
from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from qkv.datasets.counter_rng import mix_bits

ROUNDS = 6


class Permutation:
    """A permutation of range(count), determined by a seed: a Feistel network (Luby and Rackoff 1988) on 2h bits.

        (left, right) -> (right, left XOR mix(right + key_i)),    i = 1 .. ROUNDS

    Values of `count` or more are mapped again until they are smaller (cycle walking, Black and Rogaway 2002), fewer
    than four times on average.
    """

    def __init__(self, count: int, seed: str) -> None:
        self.count = count
        self._bits = np.uint64(max(1, -(-(count - 1).bit_length() // 2)))
        digest = b"".join(hashlib.sha256(f"{seed} {block}".encode()).digest() for block in range(2))
        self._keys = np.frombuffer(digest, dtype=np.uint64, count=ROUNDS)

    def __call__(self, indices: range) -> Int64[ndarray, "indices"]:
        """Return the elements at these indices."""
        values = self._encrypt(np.arange(indices.start, indices.stop, indices.step, dtype=np.uint64))
        while (outside := values >= self.count).any():
            values[outside] = self._encrypt(values[outside])
        return values.astype(np.int64)

    def _encrypt(self, values: ndarray) -> ndarray:
        mask = (np.uint64(1) << self._bits) - np.uint64(1)
        left, right = values >> self._bits, values & mask
        for key in self._keys:
            left, right = right, left ^ (mix_bits(right + key) & mask)
        return (left << self._bits) | right


class LazyBatches(Sequence[list[int]]):
    """The batches of an epoch; each is computed from its index when it is used."""

    def __init__(self, count: int, batch: Callable[[int], list[int]]) -> None:
        self._count, self._batch = count, batch

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> list[int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...

    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        numbers = range(self._count)[index]
        return self._batch(numbers) if isinstance(numbers, int) else [self._batch(number) for number in numbers]


def permuted_batches(count: int, size: int, seed: str) -> LazyBatches:
    """Return the full batches of `size` of the numbers below `count`, in an order determined by the seed."""
    permutation = Permutation(count, seed)
    return LazyBatches(count // size, lambda number: permutation(range(number * size, (number + 1) * size)).tolist())
