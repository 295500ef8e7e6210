"""Diversity of responses, counted by hand."""

import math

import pytest

from qkv.metrics.dialogue_metrics import distinct


def test_distinct_ngrams_are_counted_over_all_responses_per_word():
    texts = ["I do not know.", "I do not care!", "", "Yes"]
    # words: i do not know .   i do not care !   yes      (11; distinct: i do not know . care ! yes = 8)
    assert distinct(texts, 1) == pytest.approx(8 / 11)
    # bigrams: "i do", "do not", "not know", "know .", "not care", "care !" = 6, none across responses
    assert distinct(texts, 2) == pytest.approx(6 / 11)


def test_case_does_not_count_and_equal_responses_lower_the_value():
    assert distinct(["Hi", "hi", "HI"], 1) == pytest.approx(1 / 3)
    assert distinct(["a b"] * 10, 2) == pytest.approx(1 / 20)
    assert distinct(["don't"], 1) == 1.0  # don ' t


def test_there_is_no_value_without_words():
    assert math.isnan(distinct([], 1))
    assert math.isnan(distinct(["", " "], 2))
    assert distinct(["one"], 2) == 0.0
