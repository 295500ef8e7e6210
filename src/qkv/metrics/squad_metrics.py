"""SQuAD metrics for extractive question answering (Rajpurkar et al. 2016).

Texts are compared in lower case, without punctuation, without a, an and the, and with whitespace normalized. Each
prediction is scored against the closest of several gold answers. A question without answer has the empty one (Rajpurkar
et al. 2018).
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

NO_ANSWER = ("",)  # gold answers of an unanswerable question
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def exact_answers(predictions: Sequence[str], gold: Sequence[Sequence[str]]) -> float:
    """Return the fraction of predictions that equal a gold answer (NaN without any)."""
    return _mean_of_best(lambda words, gold_words: float(words == gold_words), predictions, gold)


def answer_f1(predictions: Sequence[str], gold: Sequence[Sequence[str]]) -> float:
    """Return the mean word F1 of predictions against their closest gold answers (NaN without any)."""
    return _mean_of_best(_f1, predictions, gold)


def answer_words(text: str) -> list[str]:
    """Return the normalized words of an answer: ["cats"] for "The  Cat's"."""
    return _ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _f1(words: list[str], gold_words: list[str]) -> float:
    """Return 2 P R / (P + R) = 2 common / (words + gold_words) over bags of words."""
    if not words or not gold_words:
        return float(words == gold_words)
    return 2 * (Counter(words) & Counter(gold_words)).total() / (len(words) + len(gold_words))


def _mean_of_best(
    score: Callable[[list[str], list[str]], float], predictions: Sequence[str], gold: Sequence[Sequence[str]]
) -> float:
    scores = [
        max(score(answer_words(prediction), answer_words(answer)) for answer in answers or NO_ANSWER)
        for prediction, answers in zip(predictions, gold, strict=True)
    ]
    return sum(scores) / len(scores) if scores else float("nan")
