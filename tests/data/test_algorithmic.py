"""Sequences of bits: what goes in, what is asked for, and that they are the same wherever they are made."""

import numpy as np
import pytest

from qkv.data.algorithmic import Copy, Recall, RepeatCopy, Stream, format_size, random_bits, random_integers
from qkv.data.registry import DataConfig, load_data
from qkv.errors import InputError

PUZZLES = [Copy(), RepeatCopy(), Recall()]


def test_a_copy_is_what_stood_between_the_marks():
    made = Copy(bits=3).generate("key", 5, (4,))
    assert made.inputs.shape == (5, 10, 5)
    assert made.answer_mask.tolist() == [0] * 6 + [1] * 4
    np.testing.assert_array_equal(made.targets[:, 6:], made.inputs[:, 1:5, :3])
    assert made.inputs[:, :, 3].tolist() == [[1] + [0] * 9] * 5  # begin
    assert made.inputs[:, :, 4].tolist() == [[0] * 5 + [1] + [0] * 4] * 5  # go
    assert not made.inputs[:, [0, 5], :3].any()
    assert not made.targets[:, :6].any()


def test_a_repeated_copy_is_said_so_many_times_and_then_ended():
    made = RepeatCopy(bits=3).generate("key", 5, (2, 3))
    assert made.answer_mask.tolist() == [0] * 4 + [1] * 7
    answer = made.targets[:, 4:]
    for time in range(3):
        np.testing.assert_array_equal(answer[:, 2 * time : 2 * time + 2, :3], made.inputs[:, 1:3, :3])
    assert answer[:, :, 3].tolist() == [[0] * 6 + [1]] * 5
    assert not answer[:, 6, :3].any()


def test_how_often_to_repeat_has_mean_0_and_variance_1_over_what_is_trained_on():
    said = [RepeatCopy().generate("key", 1, (1, times)).inputs[0, 2, 9] for times in range(1, 11)]
    assert np.mean(said) == pytest.approx(0, abs=1e-6)
    assert np.var(said) == pytest.approx(1, abs=1e-6)
    assert np.diff(said) == pytest.approx(said[1] - said[0])


def test_what_is_recalled_is_the_item_after_the_one_that_was_asked_about():
    puzzle = Recall(bits=6)
    made = puzzle.generate("key", 40, (4,))
    assert made.answer_mask.tolist() == [0] * 21 + [1] * 3
    places = set()
    for inputs, targets in zip(made.inputs, made.targets, strict=True):
        items = [inputs[4 * number + 1 : 4 * number + 4, :6] for number in range(4)]
        question = inputs[17:20, :6]
        (place,) = [number for number, item in enumerate(items) if (item == question).all()]
        np.testing.assert_array_equal(targets[21:], items[place + 1])
        places.add(place)
        assert inputs[:, 6].nonzero()[0].tolist() == [0, 4, 8, 12]
        assert inputs[:, 7].nonzero()[0].tolist() == [16, 20]
        assert not inputs[21:].any()
    assert places == {0, 1, 2}


@pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda puzzle: type(puzzle).__name__)
def test_a_stream_has_all_sizes_and_never_the_same_twice(puzzle):
    stream = Stream(puzzle, "train", 100)
    first, again, later, other = (stream.sample(*which, 4) for which in ((0, 0), (0, 0), (0, 4), (1, 0)))
    np.testing.assert_array_equal(first.inputs, again.inputs)
    for one in (later, other):
        assert one.inputs.shape != first.inputs.shape or (one.inputs != first.inputs).any()
    expected = {puzzle.generate("key", 1, size).inputs.shape[1] for size in puzzle.train_sizes}
    assert {stream.sample(0, number, 1).inputs.shape[1] for number in range(2000)} == expected


def test_bits_and_numbers_are_drawn_the_same_everywhere_and_fairly():
    assert random_bits("key", 2, 5).tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]
    assert random_integers("key", 6, high=10).tolist() == [9, 8, 8, 2, 1, 5]
    assert random_bits("many", 100_000).mean() == pytest.approx(0.5, abs=0.01)
    counts = np.bincount(random_integers("many", 60_000, high=6))
    assert counts.min() > 9_500
    assert len(counts) == 6


def test_validation_and_test_sequences_are_others_than_those_of_training_and_do_not_hang_on_the_seed():
    data = load_data(DataConfig(name="copy", size=7))
    assert {split: stream.count for split, stream in data.sequences.items()} == {"train": 7, "valid": 25, "test": 200}
    valid, test = data.sequences["valid"].of_size((20,)), data.sequences["test"].of_size((20,))
    assert len(test.inputs) == 200
    assert (valid.inputs != test.inputs[:25]).any(axis=(1, 2)).all()
    assert data.fingerprint != load_data(DataConfig(name="copy", size=8)).fingerprint
    assert data.fingerprint != load_data(DataConfig(name="repeat_copy", size=7)).fingerprint


def test_a_size_is_named_by_a_word():
    assert Copy().parse_size("120") == (120,)
    assert RepeatCopy().parse_size(format_size((20, 10))) == (20, 10)


@pytest.mark.parametrize(
    ("puzzle", "word"), [(Copy(), w) for w in ("", "0", "x", "-1", "2x3", "501", "9" * 30, "²")] + [(Recall(), "1")]
)
def test_what_is_no_size_is_refused_in_words(puzzle, word):
    with pytest.raises(InputError, match="not a valid size"):
        puzzle.parse_size(word)
