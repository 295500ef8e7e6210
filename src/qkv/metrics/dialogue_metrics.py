"""Diversity of the responses of a dialogue system."""

import re
from collections.abc import Sequence

WORD = re.compile(r"\w+|[^\w\s]")
DISTINCT_SIGNATURE = "case:lower|words:\\w+ or punctuation|per:word"


def distinct(texts: Sequence[str], n: int) -> float:
    """Return the number of distinct n-grams in all texts per generated word (Li et al. 2016); NaN without words."""
    words = [WORD.findall(text.lower()) for text in texts]
    ngrams = {tuple(row[start : start + n]) for row in words for start in range(len(row) - n + 1)}
    total = sum(map(len, words))
    return len(ngrams) / total if total else float("nan")
