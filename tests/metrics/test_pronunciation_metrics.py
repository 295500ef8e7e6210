"""Phoneme and word error rates on small examples."""

import math

import pytest

from qkv.metrics import phoneme_error_rate, word_error_rate

READ = ["R EH1 D", "R IY1 D"]
TOMATO = ["T AH0 M EY1 T OW2", "T AH0 M AA1 T OW2"]


def test_any_listed_pronunciation_is_correct() -> None:
    assert phoneme_error_rate(["R IY1 D", "T AH0 M EY1 T OW2"], [READ, TOMATO]) == 0
    assert word_error_rate(["R IY1 D", "T AH0 M EY1 T OW2"], [READ, TOMATO]) == 0


def test_errors_are_counted_against_the_closest_pronunciation() -> None:
    # "R IY1" has one error against "R IY1 D" and two against "R EH1 D"; tomato is correct: 1 of 3 + 6
    assert phoneme_error_rate(["R IY1", TOMATO[1]], [READ, TOMATO]) == 1 / 9
    assert word_error_rate(["R IY1", TOMATO[1]], [READ, TOMATO]) == 1 / 2


def test_rates_are_normalized_by_the_closest_pronunciation() -> None:
    assert phoneme_error_rate(["A B C X"], [["A B C D E F G H", "A B C D"]]) == 1 / 4
    assert phoneme_error_rate(["A"], [["A B", "A B C"]]) == 1 / 2


def test_an_empty_prediction_has_rate_one_and_rates_may_exceed_one() -> None:
    assert phoneme_error_rate([""], [READ]) == 1
    assert word_error_rate([""], [READ]) == 1
    assert phoneme_error_rate(["X Y Z X Y Z"], [["A"]]) == 6


def test_stress_matters_and_spaces_do_not() -> None:
    assert word_error_rate(["R EH0 D", " R  EH1 D "], [READ, READ]) == 1 / 2


def test_rates_without_words_are_nan() -> None:
    assert math.isnan(phoneme_error_rate([], []))
    assert math.isnan(word_error_rate([], []))
    with pytest.raises(ValueError, match="argument 2 is"):
        word_error_rate(["A"], [])
