"""Permutations that are computed from an index, and batches in their order."""

import hashlib
import struct
from collections import Counter

import numpy as np
import pytest

from qkv.datasets.shards.permutation import LazyBatches, Permutation, permuted_batches
from tests.limits import cpu_limit


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 1000, 65_537])
def test_every_number_occurs_once(count: int) -> None:
    assert sorted(Permutation(count, "0 1")(range(count)).tolist()) == list(range(count))


def test_an_element_depends_on_seed_and_index_alone() -> None:
    whole = Permutation(1000, "3 7")(range(1000))
    assert [int(Permutation(1000, "3 7")(range(index, index + 1))[0]) for index in range(1000)] == whole.tolist()
    for seed in ("3 8", "4 7", "37"):
        assert (Permutation(1000, seed)(range(1000)) == whole).sum() < 10


def one_by_one(count: int, seed: str, index: int) -> int:
    """The element at an index, in plain integers."""
    bits = max(1, ((count - 1).bit_length() + 1) // 2)
    blocks = [hashlib.sha256(f"{seed} {block}".encode()).digest() for block in range(2)]
    keys = struct.unpack("<8Q", b"".join(blocks))[:6]
    while True:
        left, right = index >> bits, index & (2**bits - 1)
        for key in keys:
            mixed = (right + key) % 2**64
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
                mixed = (mixed ^ mixed >> shift) * factor % 2**64
            left, right = right, left ^ (mixed & (2**bits - 1))
        index = left << bits | right
        if index < count:
            return index


@pytest.mark.parametrize("count", [1, 2, 10, 1000, 10**12 + 7])
def test_elements_equal_those_of_plain_integers(count: int) -> None:
    indices = range(0, count, max(1, count // 50))
    assert Permutation(count, "1 2")(indices).tolist() == [one_by_one(count, "1 2", index) for index in indices]


def test_order_stays_the_same_between_versions() -> None:
    """A run that is resumed with a later version must see the same batches."""
    assert Permutation(10, "0 0")(range(10)).tolist() == [4, 2, 0, 3, 9, 1, 7, 8, 5, 6]
    assert Permutation(10**12, "1 2")(range(3)).tolist() == [931939241888, 558080379459, 47363061086]


def test_elements_are_uniform_and_independent_of_their_neighbours() -> None:
    count, seeds = 12, 6000
    orders = np.stack([Permutation(count, f"{seed}")(range(count)) for seed in range(seeds)])
    expected = seeds / count
    for column in range(count):  # each number is equally likely at each position: chi-square with 11 degrees of freedom
        observed = np.bincount(orders[:, column], minlength=count)
        assert ((observed - expected) ** 2 / expected).sum() < 40
    pairs = Counter(map(tuple, orders[:, :2].tolist()))
    expected = seeds / (count * (count - 1))
    assert sum((pairs[a, b] - expected) ** 2 / expected for a in range(count) for b in range(count) if a != b) < 220


def test_batches_of_a_huge_corpus_take_no_time() -> None:
    with cpu_limit(30):  # its order is never stored: a fraction of a millisecond
        batches = permuted_batches(10**13, 64, "0 0")
        assert len(batches) == 10**13 // 64
        assert len(set(batches[len(batches) - 1])) == 64


def test_batches_are_a_sequence() -> None:
    batches = permuted_batches(103, 10, "5 0")
    assert len(batches) == 10  # full ones
    assert len({row for batch in batches for row in batch}) == 100
    assert batches[-1] == list(batches)[9]
    assert batches[2:4] == [batches[2], batches[3]]
    with pytest.raises(IndexError):
        batches[10]
    assert list(LazyBatches(3, lambda number: [number])) == [[0], [1], [2]]
