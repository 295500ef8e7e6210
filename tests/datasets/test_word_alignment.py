"""Word alignment against plain loops in float64, and the phrases that follow from it."""

import math
import random

import pytest

from qkv.datasets.examples.pair import Pair
from qkv.datasets.word_alignment import (
    DIAGONAL,
    ITERATIONS,
    MAX_WORDS,
    NULL_PROBABILITY,
    WordAlignment,
    best_source_words,
)

PAIRS = [
    Pair("The house is small.", "Das Haus ist klein."),
    Pair("The house", "Das Haus"),
    Pair("A small book", "Ein kleines Buch"),
    Pair("The book is old.", "Das Buch ist alt."),
    Pair("No, the book is not old.", "Nein, das Buch ist nicht alt."),
    Pair("No, the house is small.", "Nein, das Haus ist klein."),
]


def best_by_loops(sources: list[list[int]], targets: list[list[int]]) -> list[list[int]]:
    """The equations of the module, one word at a time; source word None is the null word."""
    table: dict[tuple[int | None, int], float] = {}

    def weights(source: list[int], target: list[int], j: int) -> dict[int, float]:
        prior = {
            i: math.exp(-DIAGONAL * abs((i + 0.5) / len(source) - (j + 0.5) / len(target))) for i in range(len(source))
        }
        total = sum(prior.values())
        joint = {
            i: table.get((source[i], target[j]), 1.0) * (1 - NULL_PROBABILITY) * p / total for i, p in prior.items()
        }
        joint[-1] = table.get((None, target[j]), 1.0) * NULL_PROBABILITY
        return {i: value / sum(joint.values()) for i, value in joint.items()}

    for _ in range(ITERATIONS):
        counts: dict[tuple[int | None, int], float] = {}
        for source, target in zip(sources, targets, strict=True):
            for j, word in enumerate(target):
                for i, weight in weights(source, target, j).items():
                    key = (None if i < 0 else source[i], word)
                    counts[key] = counts.get(key, 0.0) + weight
        totals: dict[int | None, float] = {}
        for (word, _), count in counts.items():
            totals[word] = totals.get(word, 0.0) + count
        table = {key: count / totals[key[0]] for key, count in counts.items()}
    return [
        [max(row := weights(source, target, j), key=row.__getitem__) for j in range(len(target))]
        for source, target in zip(sources, targets, strict=True)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_alignment_equals_the_loops(seed: int):
    rng = random.Random(seed)
    lengths = [(rng.randint(1, 7), rng.randint(1, 7)) for _ in range(40)]
    sources = [rng.sample(range(1, 13), n) for n, _ in lengths]  # distinct words: no ties
    targets = [[rng.randint(1, 12) for _ in range(m)] for _, m in lengths]
    assert best_source_words(sources, targets) == best_by_loops(sources, targets)


def test_words_that_occur_together_are_linked():
    alignment = WordAlignment(PAIRS)
    assert alignment.links[4] == [(i, i) for i in range(8)]


def test_phrases_have_a_translation_of_their_own():
    alignment = WordAlignment([*PAIRS, Pair("No the book is not old.", "Nein das Buch ist nicht alt.")])
    phrases = {(pair.source, pair.target) for pair in alignment.phrases(6)}
    assert {("No", "Nein"), ("book", "Buch"), ("the book", "das Buch"), ("is not old", "ist nicht alt")} <= phrases
    assert all(source[0].isalnum() and source[-1].isalnum() for source, _ in phrases)
    assert ("the book is not old", "das Buch ist nicht alt") not in phrases  # five words


def test_clauses_are_preferred_to_other_phrases():
    alignment = WordAlignment(PAIRS)
    assert alignment.phrases(4) == [Pair("No", "Nein")]  # "the book is not old" has five words
    assert alignment.phrases(5) == [Pair("No", "Nein"), Pair("the house is small", "das Haus ist klein")]
    assert Pair("house", "Haus") in alignment.phrases(0)  # the whole sentence is no clause


def test_a_word_next_to_an_unlinked_word_is_no_phrase():
    alignment = WordAlignment(PAIRS)
    alignment.links[1] = [(0, 0)]  # "house" and "Haus" are not linked
    assert alignment.phrases(1) == []


def test_crossing_links():
    alignment = WordAlignment([Pair("can eat fish", "Fisch essen kann")])
    alignment.links[0] = [(0, 2), (1, 1), (2, 0)]
    assert Pair("eat fish", "Fisch essen") in alignment.phrases(0)
    alignment.links[0] = [(0, 1), (1, 2), (2, 0)]
    assert Pair("can eat", "essen kann") in alignment.phrases(0)
    assert all(pair.source != "eat fish" for pair in alignment.phrases(0))  # its translation has a gap


def test_empty_and_long_texts_are_not_aligned():
    long = " ".join(["word"] * (MAX_WORDS + 1))
    alignment = WordAlignment([Pair("", "leer"), Pair(long, long), Pair("word", "Wort")])
    assert alignment.links == [[], [], [(0, 0)]]
    assert WordAlignment([]).links == []
    assert WordAlignment([Pair("", "")]).links == [[]]
