"""Answers against right answers, as SQuAD compares them: by hand."""

import math

import pytest

from qkv.metrics.answers import answer_f1, answer_words, exact_answers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The  Cat's", ["cats"]),
        ("an apple, a pear\tand THE plum!", ["apple", "pear", "and", "plum"]),
        ("theatre", ["theatre"]),  # which begins as an article does
        ("U.S. $5.3-million", ["us", "53million"]),
        ("“Ünder”", ["“ünder”"]),  # only ASCII's punctuation is left out
        ("a", []),
        ("", []),
    ],
)
def test_words_are_compared_without_case_punctuation_and_articles(text, words):
    assert answer_words(text) == words


@pytest.mark.parametrize(
    ("found", "right", "exact", "f1"),
    [
        ("the cat", ["Cat."], 1, 1),
        ("black cat", ["cat", "the black cat!"], 1, 1),  # the nearest counts
        ("a black cat", ["cat"], 0, 2 / 3),  # P = 1/2, R = 1
        ("cat cat", ["cat"], 0, 2 / 3),  # the second is one too many
        ("cat", ["cat cat dog"], 0, 1 / 2),  # P = 1, R = 1/3
        ("dog", ["cat"], 0, 0),
        ("", ["cat"], 0, 0),
        ("", [], 1, 1),  # a question without an answer, and none given
        ("cat", [], 0, 0),
        ("the", ["a"], 1, 1),  # nothing is left of either
    ],
)
def test_an_answer_is_scored_by_the_nearest_right_one(found, right, exact, f1):
    assert exact_answers([found], [right]) == exact
    assert answer_f1([found], [right]) == pytest.approx(f1)


def test_scores_are_means_over_questions_and_of_none_there_is_no_score():
    assert exact_answers(["cat", "dog"], [["cat"], ["cat"]]) == 0.5
    assert answer_f1(["cat", "black dog"], [["cat"], ["dog"]]) == pytest.approx((1 + 2 / 3) / 2)
    assert math.isnan(exact_answers([], []))
    assert math.isnan(answer_f1([], []))
