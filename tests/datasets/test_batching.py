"""Tests of batching by length: completeness, token budget and reproducibility."""

import statistics
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.datasets.batching import (
    IGNORE,
    WIDTH_MULTIPLE,
    BatchSize,
    EncodedPair,
    batch_by_length,
    collate,
    collate_to_shape,
    shuffled_batches,
)
from qkv.tokenizers.trained import BEGIN, END, PAD

lengths_of_examples = st.lists(st.integers(1, 60), max_size=120)
budgets = st.integers(1, 300)
seeds = st.integers(0, 2**31 - 1)


def assert_budget_held(batches: list[list[int]], lengths: list[int], budget: int) -> None:
    for batch in batches:
        assert batch
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget


@given(lengths_of_examples, budgets)
def test_batches_by_length_contain_every_example_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = batch_by_length(lengths, BatchSize(budget))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert_budget_held(batches, lengths, budget)


@given(lengths_of_examples, budgets)
def test_batches_by_length_are_sorted_and_as_full_as_possible(lengths: list[int], budget: int) -> None:
    batches = batch_by_length(lengths, BatchSize(budget))
    flat = [lengths[index] for batch in batches for index in batch]
    assert flat == sorted(flat)
    for batch, following in pairwise(batches):
        assert (len(batch) + 1) * lengths[following[0]] > budget


def test_batches_by_length_can_use_a_subset_of_the_examples() -> None:
    assert batch_by_length([3, 1, 2, 9], BatchSize(4), order=[0, 2, 1]) == [[1, 2], [0]]


@given(lengths_of_examples, budgets, seeds, st.integers(0, 1000))
def test_an_epoch_contains_every_example_once_within_the_budget(
    lengths: list[int], budget: int, seed: int, epoch: int
) -> None:
    batches = shuffled_batches(lengths, BatchSize(budget), seed, epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert_budget_held(batches, lengths, budget)


@given(lengths_of_examples, budgets, seeds, st.integers(0, 1000))
def test_batches_depend_only_on_seed_and_epoch(lengths: list[int], budget: int, seed: int, epoch: int) -> None:
    first = shuffled_batches(lengths, BatchSize(budget), seed, epoch)
    torch.rand(3)  # the state of the world does not matter
    assert shuffled_batches(lengths, BatchSize(budget), seed, epoch) == first


@given(lengths_of_examples, st.integers(1, 30), seeds)
def test_batches_of_a_number_of_examples_contain_every_example_once(lengths: list[int], size: int, seed: int) -> None:
    batches = shuffled_batches(lengths, BatchSize(size, "examples"), seed, 0)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(1 <= len(batch) <= size for batch in batches)
    in_order = batch_by_length(lengths, BatchSize(size, "examples"))
    assert [len(batch) for batch in in_order[:-1]] == [size] * (len(in_order) - 1)


def test_batches_of_a_seed_do_not_change() -> None:
    lengths = [1 + number * number % 13 for number in range(60)]
    batches = shuffled_batches(lengths, BatchSize(64), seed=3, epoch=1)
    assert [sum(batch) for batch in batches] == [254, 31, 146, 131, 165, 451, 88, 122, 170, 212]


def test_epochs_and_seeds_differ_in_order() -> None:
    lengths = [1 + number % 40 for number in range(5000)]
    orders = [shuffled_batches(lengths, BatchSize(512), seed, epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert all(one != other for index, one in enumerate(orders) for other in orders[:index])


def test_lengths_within_a_batch_are_similar_and_padding_is_rare() -> None:
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(5, 80, (20_000,), generator=generator).tolist()
    batches = shuffled_batches(lengths, BatchSize(1024), seed=0, epoch=0)
    padded = sum(len(batch) * max(lengths[index] for index in batch) for batch in batches)
    assert sum(lengths) / padded > 0.97
    # Batches of like length do not come one after the other, or the gradient would drift with them.
    firsts = [float(lengths[batch[0]]) for batch in batches]
    assert abs(statistics.correlation(firsts[1:], firsts[:-1])) < 0.2


def test_a_batch_is_padded_with_begin_and_end_tokens() -> None:
    batch = collate([EncodedPair([7, 8, 9], [5]), EncodedPair([6], [4, 5])], begin=BEGIN, end=END)
    assert batch.source.tolist() == [[7, 8, 9], [6, PAD, PAD]]
    assert batch.source_lengths.tolist() == [3, 1]
    assert batch.target_in.tolist() == [[BEGIN, 5, PAD], [BEGIN, 4, 5]]
    assert batch.target_out.tolist() == [[5, END, IGNORE], [4, 5, END]]
    assert batch.tokens == 5
    assert batch.to(torch.device("cpu")) is batch


def test_a_batch_can_be_padded_with_ignored_rows() -> None:
    batch = collate_to_shape([EncodedPair([7, 8, 9, 7, 8], [5])], BatchSize(24), longest=100, begin=BEGIN, end=END)
    assert batch.source.tolist() == [[7, 8, 9, 7, 8, PAD, PAD, PAD], [PAD] * 8, [PAD] * 8]
    assert batch.source_lengths.tolist() == [5, 1, 1]
    assert batch.target_in.tolist() == [[BEGIN, 5, *[PAD] * 6], [PAD] * 8, [PAD] * 8]
    assert batch.target_out.tolist() == [[5, END, *[IGNORE] * 6], [IGNORE] * 8, [IGNORE] * 8]
    assert batch.tokens == 2


def test_a_batch_padded_to_shape_respects_the_maximum_length() -> None:
    assert collate_to_shape(
        [EncodedPair([7] * 5, [5])], BatchSize(24), longest=6, begin=BEGIN, end=END
    ).source.shape == (4, 6)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=300), st.integers(1, 300), seeds)
def test_batches_padded_to_shape_have_one_shape_per_width(lengths: list[int], budget: int, seed: int) -> None:
    pairs = [EncodedPair([4] * length, [4]) for length in lengths]
    for rows in shuffled_batches([pair.length for pair in pairs], BatchSize(budget), seed, 0):
        height, width = collate_to_shape(
            [pairs[row] for row in rows], BatchSize(budget), 64, begin=BEGIN, end=END
        ).source.shape
        assert width % WIDTH_MULTIPLE == 0
        assert height == max(1, budget // width)


@pytest.mark.parametrize(("source", "target", "length"), [([1, 2, 3], [1], 3), ([1], [1, 2, 3], 4), ([1], [], 1)])
def test_the_length_of_a_pair_is_its_longer_side_including_the_end_token(
    source: list[int], target: list[int], length: int
) -> None:
    assert EncodedPair(source, target).length == length
