"""ROUGE against its definition on short random texts, and on examples."""

import math
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.metrics.rouge import rouge_scores, rouge_words

KINDS = ("rouge_1", "rouge_2", "rouge_l")
texts = st.lists(st.sampled_from("abc"), max_size=7)


@cache
def slow_common(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    """Return the longest common subsequence by enumeration."""
    by_length = {length: set(combinations(left, length)) & set(combinations(right, length)) for length in range(8)}
    return max(length for length, common in by_length.items() if common)


def slow_overlap(left: list[str], right: list[str], n: int) -> tuple[int, int, int]:
    """Return the number of matched n-grams, and the number of n-grams on each side."""
    left_ngrams, right_ngrams = ([side[at : at + n] for at in range(len(side) - n + 1)] for side in (left, right))
    unmatched, common = list(right_ngrams), 0
    for ngram in left_ngrams:
        if ngram in unmatched:
            unmatched.remove(ngram)
            common += 1
    return common, len(left_ngrams), len(right_ngrams)


def f1(common: int, size: int, reference_size: int) -> float:
    """Return 2 P R / (P + R)."""
    if not common:
        return 0.0
    precision, recall = common / size, common / reference_size
    return 2 * precision * recall / (precision + recall)


@settings(deadline=None)  # the first call imports rouge_score
@given(texts, texts)
def test_scores_match_their_definitions(left: list[str], right: list[str]) -> None:
    longest = slow_common(tuple(left), tuple(right))
    scores = rouge_scores([" ".join(left)], [" ".join(right)])
    assert tuple(scores) == KINDS
    assert scores["rouge_1"] == pytest.approx(f1(*slow_overlap(left, right, 1)))
    assert scores["rouge_2"] == pytest.approx(f1(*slow_overlap(left, right, 2)))
    assert scores["rouge_l"] == pytest.approx(f1(longest, len(left), len(right)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("police kill the gunman", (3 / 4, 1 / 3, 3 / 4)),
        ("the gunman kill police", (3 / 4, 1 / 3, 2 / 4)),
        ("the gunman police killed", (4 / 4, 2 / 3, 2 / 4)),
    ],
)
def test_the_examples_of_the_paper(text: str, expected: tuple[float, ...]) -> None:
    """The first two examples differ in ROUGE-L only (section 3.1)."""
    scores = rouge_scores([text], ["police killed the gunman"])
    assert tuple(scores.values()) == pytest.approx(expected)


def test_counts_are_clipped_and_length_costs_precision() -> None:
    # one "the" of five matches the reference of three words: P = 1/5, R = 1/3, F1 = 1/4
    assert rouge_scores(["the the the the the"], ["the cat sat"])["rouge_1"] == pytest.approx(1 / 4)


def test_a_corpus_score_is_the_mean_of_its_pairs() -> None:
    scores = rouge_scores(["a b", "a b c d", "x"], ["A, b!", "a x c y", ""])
    assert tuple(scores.values()) == pytest.approx(((1 + 1 / 2 + 0) / 3, (1 + 0 + 0) / 3, (1 + 1 / 2 + 0) / 3))


def test_scores_are_nan_without_pairs_and_zero_without_words() -> None:
    assert all(map(math.isnan, rouge_scores([], []).values()))
    assert set(rouge_scores(["...", ""], ["...", ""]).values()) == {0.0}
    assert rouge_scores(["yes"], ["yes"]) == {"rouge_1": 1.0, "rouge_2": 0.0, "rouge_l": 1.0}
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        rouge_scores(["a", "b"], ["a"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 5,300 snake_case\tWORDS.", "it s 5 300 snake case words"),
        ("Ein Mann fa\u0308hrt – Rad", "ein mann fährt rad"),  # a combining and a composed accent
        ("Ελλάδα: Ένα", "ελλάδα ένα"),
        ("हिन्दी में", "हिन्दी में"),  # vowels are marks
        ("2026年は、カメラ", "2026 年 は カ メ ラ"),
    ],
)
def test_words_of_any_script_are_split(text: str, words: str) -> None:
    assert rouge_words(text) == words.split()
