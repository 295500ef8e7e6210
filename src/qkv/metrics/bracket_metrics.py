"""Labeled bracket scores of constituency trees, equal to those of EVALB with the parameters of Collins (1997).

A bracket is a label and the words that it covers. Words tagged as punctuation do not count, nor do the root and
brackets without other words; function tags are cut off (NP-SBJ is NP), and PRT equals ADVP. The tags of the reference
decide which words are punctuation in both trees.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, runtime_checkable

PUNCTUATION = frozenset({",", ":", "``", "''", ".", "-NONE-"})  # tags of the words that do not count
NOT_COUNTED = PUNCTUATION | {"TOP"}  # labels of the constituents that do not count
EQUAL_LABELS = {"PRT": "ADVP"}
FUNCTION_TAG = re.compile(r"(?<=.)[-=].*")
Bracket = tuple[str, int, int]


@runtime_checkable
class LabelledTree(Protocol):
    """A tree as its tags and constituents."""

    @property
    def tags(self) -> Sequence[str]: ...

    @property
    def constituents(self) -> Sequence[Bracket]: ...


@dataclass(frozen=True)
class BracketScores:
    """Scores of trees; each is between 0 and 1."""

    f1: float
    precision: float
    recall: float
    exact: float  # fraction of sentences whose brackets are all correct


def bracket_scores(predictions: Sequence[LabelledTree], references: Sequence[LabelledTree]) -> BracketScores:
    """Compare the brackets of all predicted trees with those of the references of the same sentences."""
    matched = predicted = expected = exact = 0
    for prediction, reference in zip(predictions, references, strict=True):
        found = brackets(prediction.constituents, reference.tags)
        wanted = brackets(reference.constituents, reference.tags)
        matched += (found & wanted).total()
        predicted += found.total()
        expected += wanted.total()
        exact += found == wanted
    return BracketScores(
        _ratio(2 * matched, predicted + expected),
        _ratio(matched, predicted),
        _ratio(matched, expected),
        _ratio(exact, len(references)),
    )


def brackets(constituents: Sequence[Bracket], tags: Sequence[str]) -> Counter[Bracket]:
    """Return how often each bracket occurs, in words that are not punctuation."""
    kept = [0, *accumulate(tag not in PUNCTUATION for tag in tags)]  # words before each position
    counts: Counter[Bracket] = Counter()
    for label, start, end in constituents:
        name = FUNCTION_TAG.sub("", label)
        if name not in NOT_COUNTED and kept[start] < kept[end]:
            counts[EQUAL_LABELS.get(name, name), kept[start], kept[end]] += 1
    return counts


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
