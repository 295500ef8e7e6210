"""SQuAD metrics on small examples."""

import math

import pytest

from qkv.metrics.squad_metrics import answer_f1, answer_words, exact_answers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The  Cat's", ["cats"]),
        ("an apple, a pear\tand THE plum!", ["apple", "pear", "and", "plum"]),
        ("theatre", ["theatre"]),  # starts like an article
        ("U.S. $5.3-million", ["us", "53million"]),
        ("“Ünder”", ["“ünder”"]),  # only ASCII punctuation is removed
        ("a", []),
        ("", []),
    ],
)
def test_words_are_compared_without_case_punctuation_and_articles(text, words):
    assert answer_words(text) == words


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "f1"),
    [
        ("the cat", ["Cat."], 1, 1),
        ("black cat", ["cat", "the black cat!"], 1, 1),  # the closest gold answer counts
        ("a black cat", ["cat"], 0, 2 / 3),  # P = 1/2, R = 1
        ("cat cat", ["cat"], 0, 2 / 3),  # the second does not match
        ("cat", ["cat cat dog"], 0, 1 / 2),  # P = 1, R = 1/3
        ("dog", ["cat"], 0, 0),
        ("", ["cat"], 0, 0),
        ("", [], 1, 1),  # no gold answer, and none predicted
        ("cat", [], 0, 0),
        ("the", ["a"], 1, 1),  # both are empty without articles
    ],
)
def test_an_answer_is_scored_against_the_closest_gold_answer(prediction, gold, exact, f1):
    assert exact_answers([prediction], [gold]) == exact
    assert answer_f1([prediction], [gold]) == pytest.approx(f1)


def test_scores_are_means_over_questions_and_nan_without_any():
    assert exact_answers(["cat", "dog"], [["cat"], ["cat"]]) == 0.5
    assert answer_f1(["cat", "black dog"], [["cat"], ["dog"]]) == pytest.approx((1 + 2 / 3) / 2)
    assert math.isnan(exact_answers([], []))
    assert math.isnan(answer_f1([], []))
