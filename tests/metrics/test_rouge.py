"""ROUGE: against its definition, tried out in every way on short texts, and by hand."""

import math
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.metrics import rouge_scores
from qkv.metrics.rouge import common_subsequence, rouge_words

KINDS = ("rouge_1", "rouge_2", "rouge_l")
texts = st.lists(st.sampled_from("abc"), max_size=7)


@cache
def slow_common(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    """The definition: the longest of all subsequences of the one that are subsequences of the other."""
    found = {length: set(combinations(left, length)) & set(combinations(right, length)) for length in range(8)}
    return max(length for length, common in found.items() if common)


def slow_overlap(left: list[str], right: list[str], n: int) -> tuple[int, int, int]:
    """How many n-grams find one of their own on the other side, each once; and how many there are."""
    grams, others = ([side[at : at + n] for at in range(len(side) - n + 1)] for side in (left, right))
    free, common = list(others), 0
    for gram in grams:
        if gram in free:
            free.remove(gram)
            common += 1
    return common, len(grams), len(others)


def harmonic(common: int, ours: int, truth: int) -> float:
    """2 P R / (P + R), step by step."""
    if not common:
        return 0.0
    precision, recall = common / ours, common / truth
    return 2 * precision * recall / (precision + recall)


@given(texts, texts)
def test_scores_are_what_their_definitions_say(left: list[str], right: list[str]) -> None:
    longest = slow_common(tuple(left), tuple(right))
    assert common_subsequence(left, right) == common_subsequence(right, left) == longest
    found = rouge_scores([" ".join(left)], [" ".join(right)])
    assert tuple(found) == KINDS
    assert found["rouge_1"] == pytest.approx(harmonic(*slow_overlap(left, right, 1)))
    assert found["rouge_2"] == pytest.approx(harmonic(*slow_overlap(left, right, 2)))
    assert found["rouge_l"] == pytest.approx(harmonic(longest, len(left), len(right)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("police kill the gunman", (3 / 4, 1 / 3, 3 / 4)),
        ("the gunman kill police", (3 / 4, 1 / 3, 2 / 4)),
        ("the gunman police killed", (4 / 4, 2 / 3, 2 / 4)),
    ],
)
def test_the_examples_of_the_paper(text: str, expected: tuple[float, ...]) -> None:
    """Of the first two, the first is nearer (section 3.1): what ROUGE-L sees, and ROUGE-1 and ROUGE-2 do not."""
    found = rouge_scores([text], ["police killed the gunman"])
    assert tuple(found.values()) == pytest.approx(expected)


def test_counts_are_clipped_and_length_costs_precision() -> None:
    # one "the" of five is in the reference of three words: P = 1/5, R = 1/3, F1 = 1/4
    assert rouge_scores(["the the the the the"], ["the cat sat"])["rouge_1"] == pytest.approx(1 / 4)


def test_a_corpus_has_the_mean_of_its_pairs() -> None:
    found = rouge_scores(["a b", "a b c d", "x"], ["A, b!", "a x c y", ""])
    assert tuple(found.values()) == pytest.approx(((1 + 1 / 2 + 0) / 3, (1 + 0 + 0) / 3, (1 + 1 / 2 + 0) / 3))


def test_no_pairs_have_no_score_and_no_words_the_lowest() -> None:
    assert all(map(math.isnan, rouge_scores([], []).values()))
    assert set(rouge_scores(["...", ""], ["...", ""]).values()) == {0.0}
    assert rouge_scores(["yes"], ["yes"]) == {"rouge_1": 1.0, "rouge_2": 0.0, "rouge_l": 1.0}
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        rouge_scores(["a", "b"], ["a"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 5,300 snake_case\tWORDS.", "it s 5 300 snake case words"),
        ("Ein Mann fa\u0308hrt – Rad", "ein mann fährt rad"),  # an accent of its own, and one composed
        ("Ελλάδα: Ένα", "ελλάδα ένα"),
        ("हिन्दी में", "हिन्दी में"),  # vowels are marks
        ("2026年は、カメラ", "2026 年 は カ メ ラ"),
    ],
)
def test_words_are_found_in_any_script(text: str, words: str) -> None:
    assert rouge_words(text) == words.split()
