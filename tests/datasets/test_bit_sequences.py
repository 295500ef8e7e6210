"""Tests of the algorithmic tasks: inputs, targets and reproducibility."""

import numpy as np
import pytest

from qkv.datasets.corpora.synthetic.bit_sequences import (
    Copy,
    Recall,
    RepeatCopy,
    Stream,
    format_size,
    random_bits,
    random_integers,
)
from qkv.errors import InputError
from tests.datasets.build import load

PUZZLES = [Copy(), RepeatCopy(), Recall()]


def test_copy_targets_repeat_the_vectors_between_the_markers():
    sequences = Copy(bits=3).generate("key", 5, (4,))
    assert sequences.inputs.shape == (5, 10, 5)
    assert sequences.answer_mask.tolist() == [0] * 6 + [1] * 4
    np.testing.assert_array_equal(sequences.targets[:, 6:], sequences.inputs[:, 1:5, :3])
    assert sequences.inputs[:, :, 3].tolist() == [[1] + [0] * 9] * 5  # begin
    assert sequences.inputs[:, :, 4].tolist() == [[0] * 5 + [1] + [0] * 4] * 5  # go
    assert not sequences.inputs[:, [0, 5], :3].any()
    assert not sequences.targets[:, :6].any()


def test_repeat_copy_targets_repeat_the_vectors_and_end_with_a_marker():
    sequences = RepeatCopy(bits=3).generate("key", 5, (2, 3))
    assert sequences.answer_mask.tolist() == [0] * 4 + [1] * 7
    answer = sequences.targets[:, 4:]
    for time in range(3):
        np.testing.assert_array_equal(answer[:, 2 * time : 2 * time + 2, :3], sequences.inputs[:, 1:3, :3])
    assert answer[:, :, 3].tolist() == [[0] * 6 + [1]] * 5
    assert not answer[:, 6, :3].any()


def test_the_repeat_count_is_normalized_over_the_training_sizes():
    values = [RepeatCopy().generate("key", 1, (1, times)).inputs[0, 2, 9] for times in range(1, 11)]
    assert np.mean(values) == pytest.approx(0, abs=1e-6)
    assert np.var(values) == pytest.approx(1, abs=1e-6)
    assert np.diff(values) == pytest.approx(values[1] - values[0])


def test_recall_targets_are_the_item_after_the_query():
    puzzle = Recall(bits=6)
    sequences = puzzle.generate("key", 40, (4,))
    assert sequences.answer_mask.tolist() == [0] * 21 + [1] * 3
    indices = set()
    for inputs, targets in zip(sequences.inputs, sequences.targets, strict=True):
        items = [inputs[4 * number + 1 : 4 * number + 4, :6] for number in range(4)]
        question = inputs[17:20, :6]
        (index,) = [number for number, item in enumerate(items) if (item == question).all()]
        np.testing.assert_array_equal(targets[21:], items[index + 1])
        indices.add(index)
        assert inputs[:, 6].nonzero()[0].tolist() == [0, 4, 8, 12]
        assert inputs[:, 7].nonzero()[0].tolist() == [16, 20]
        assert not inputs[21:].any()
    assert indices == {0, 1, 2}


@pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda puzzle: type(puzzle).__name__)
def test_a_stream_has_all_sizes_and_no_duplicates(puzzle):
    stream = Stream(puzzle, "train", 100)
    first, again, later, other = (stream.sample(*which, 4) for which in ((0, 0), (0, 0), (0, 4), (1, 0)))
    np.testing.assert_array_equal(first.inputs, again.inputs)
    for one in (later, other):
        assert one.inputs.shape != first.inputs.shape or (one.inputs != first.inputs).any()
    expected = {puzzle.generate("key", 1, size).inputs.shape[1] for size in puzzle.train_sizes}
    assert {stream.sample(0, number, 1).inputs.shape[1] for number in range(2000)} == expected


def test_random_bits_and_integers_are_reproducible_and_uniform():
    assert random_bits("key", 2, 5).tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]
    assert random_integers("key", 6, high=10).tolist() == [9, 8, 8, 2, 1, 5]
    assert random_bits("many", 100_000).mean() == pytest.approx(0.5, abs=0.01)
    counts = np.bincount(random_integers("many", 60_000, high=6))
    assert counts.min() > 9_500
    assert len(counts) == 6


def test_valid_and_test_sequences_differ_from_training_and_ignore_the_seed():
    data = load("copy", size=7)
    assert {split: stream.count for split, stream in data.splits.items()} == {"train": 7, "valid": 25, "test": 200}
    valid, test = data.splits["valid"].of_size((20,)), data.splits["test"].of_size((20,))
    assert len(test.inputs) == 200
    assert (valid.inputs != test.inputs[:25]).any(axis=(1, 2)).all()
    assert data.fingerprint != load("copy", size=8).fingerprint
    assert data.fingerprint != load("repeat_copy", size=7).fingerprint


def test_sizes_are_formatted_and_parsed():
    assert Copy().parse_size("120") == (120,)
    assert RepeatCopy().parse_size(format_size((20, 10))) == (20, 10)


@pytest.mark.parametrize(
    ("puzzle", "word"), [(Copy(), w) for w in ("", "0", "x", "-1", "2x3", "501", "9" * 30, "²")] + [(Recall(), "1")]
)
def test_invalid_sizes_are_rejected(puzzle, word):
    with pytest.raises(InputError, match="not a valid size"):
        puzzle.parse_size(word)
