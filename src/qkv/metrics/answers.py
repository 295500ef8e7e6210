"""How close answers to questions are to the ones that people gave, as SQuAD measures it (Rajpurkar et al. 2016).

Texts are compared in lower case, without punctuation, without a, an and the, and with one space between words. Of
several right answers the nearest counts. That there is none is an answer too: the empty one (Rajpurkar et al. 2018).
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

NONE = ("",)  # the right answers to a question that has none
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def exact_answers(found: Sequence[str], wanted: Sequence[Sequence[str]]) -> float:
    """The share of answers that equal one of the right ones (NaN of none)."""
    return _mean_of_nearest(lambda ours, truth: float(ours == truth), found, wanted)


def answer_f1(found: Sequence[str], wanted: Sequence[Sequence[str]]) -> float:
    """The mean over questions of the F1 that the words of an answer have with those of the nearest right one."""
    return _mean_of_nearest(_f1, found, wanted)


def answer_words(text: str) -> list[str]:
    """The words of an answer that are compared: those of "The  Cat's" are "cats"."""
    return _ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _f1(ours: list[str], truth: list[str]) -> float:
    """2 P R / (P + R) = 2 common / (ours + truth), each word counted as often as it stands there."""
    if not ours or not truth:
        return float(ours == truth)
    return 2 * (Counter(ours) & Counter(truth)).total() / (len(ours) + len(truth))


def _mean_of_nearest(
    likeness: Callable[[list[str], list[str]], float], found: Sequence[str], wanted: Sequence[Sequence[str]]
) -> float:
    scores = [
        max(likeness(answer_words(ours), answer_words(truth)) for truth in truths or NONE)
        for ours, truths in zip(found, wanted, strict=True)
    ]
    return sum(scores) / len(scores) if scores else float("nan")
