"""Phoneme and word error rates, counted by hand."""

import math

import pytest

from qkv.metrics import phoneme_error_rate, word_error_rate

READ = ["R EH1 D", "R IY1 D"]
TOMATO = ["T AH0 M EY1 T OW2", "T AH0 M AA1 T OW2"]


def test_any_listed_way_is_right() -> None:
    assert phoneme_error_rate(["R IY1 D", "T AH0 M EY1 T OW2"], [READ, TOMATO]) == 0
    assert word_error_rate(["R IY1 D", "T AH0 M EY1 T OW2"], [READ, TOMATO]) == 0


def test_errors_are_counted_against_the_nearest_way() -> None:
    # "R IY1" lacks one phoneme of "R IY1 D", and would have two errors against "R EH1 D"; tomato is right: 1 of 3 + 6
    assert phoneme_error_rate(["R IY1", TOMATO[1]], [READ, TOMATO]) == 1 / 9
    assert word_error_rate(["R IY1", TOMATO[1]], [READ, TOMATO]) == 1 / 2


def test_the_length_that_counts_is_the_nearest_ways() -> None:
    assert phoneme_error_rate(["A B C X"], [["A B C D E F G H", "A B C D"]]) == 1 / 4
    assert phoneme_error_rate(["A"], [["A B", "A B C"]]) == 1 / 2


def test_silence_lacks_every_phoneme_and_babble_may_pass_one() -> None:
    assert phoneme_error_rate([""], [READ]) == 1
    assert word_error_rate([""], [READ]) == 1
    assert phoneme_error_rate(["X Y Z X Y Z"], [["A"]]) == 6


def test_stress_and_spaces_are_as_they_are_written() -> None:
    assert word_error_rate(["R EH0 D", " R  EH1 D "], [READ, READ]) == 1 / 2


def test_of_nothing_there_is_no_rate() -> None:
    assert math.isnan(phoneme_error_rate([], []))
    assert math.isnan(word_error_rate([], []))
    with pytest.raises(ValueError, match="argument 2 is"):
        word_error_rate(["A"], [])
