"""Word error rate against a hand-written edit distance, and against counted errors."""

import math
import random

import pytest

from qkv.metrics.speech_metrics import normalize_transcript, word_error_rate


def distance(left: list[str], right: list[str]) -> int:
    """The Levenshtein distance, by its recursion over a table."""
    table = [[i + j if i * j == 0 else 0 for j in range(len(right) + 1)] for i in range(len(left) + 1)]
    for i, word in enumerate(left, start=1):
        for j, other in enumerate(right, start=1):
            substituted = table[i - 1][j - 1] + (word != other)
            table[i][j] = min(substituted, table[i - 1][j] + 1, table[i][j - 1] + 1)
    return table[-1][-1]


@pytest.mark.parametrize(
    ("text", "reference", "rate"),
    [
        ("one two three", "one two three", 0),
        ("one too three", "one two three", 1 / 3),  # substitution
        ("one three", "one two three", 1 / 3),  # deletion
        ("one two two three", "one two three", 1 / 3),  # insertion
        ("", "one two", 1),
        ("one two three four", "five", 4),
        ("two one", "one two", 1),
    ],
)
def test_counted_errors(text: str, reference: str, rate: float) -> None:
    assert word_error_rate([text], [reference]) == pytest.approx(rate)


def test_errors_are_summed_over_all_texts() -> None:
    rng = random.Random(0)
    texts, references = ([" ".join(rng.choices("abcd", k=rng.randint(1, 9))) for _ in range(50)] for _ in range(2))
    pairs = list(zip(texts, references, strict=True))
    errors = sum(distance(text.split(), reference.split()) for text, reference in pairs)
    words = sum(len(reference.split()) for reference in references)
    assert word_error_rate(texts, references) == pytest.approx(errors / words)
    assert math.isnan(word_error_rate([], []))


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        (" It's Seven.", "it's seven"),
        ("555-12, 3!", "five five five one two three"),
        ("A  b\tc", "a b c"),
        ("...", ""),
        ("naïve café", "naïve café"),
    ],
)
def test_texts_are_normalized(text: str, normalized: str) -> None:
    assert normalize_transcript(text) == normalized
