"""Word error rate of transcripts."""

import re
from collections.abc import Sequence

from qkv.metrics.intervals import Interval, ratio_interval
from qkv.metrics.text_metrics import edit_distance

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PUNCTUATION = re.compile(r"[^\w\s']|_")


def word_error_rate(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return substituted, deleted and inserted words per reference word, over all texts (NaN without any)."""
    errors, words = map(sum, _word_errors(texts, references))
    return errors / words if words else float("nan")


def word_error_interval(texts: Sequence[str], references: Sequence[str]) -> Interval | None:
    """Return the 95 % confidence interval of the word error rate, from bootstrap resampling of the texts."""
    return ratio_interval(*_word_errors(texts, references))


def _word_errors(texts: Sequence[str], references: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the number of errors of each text, and of words of its reference."""
    errors = [edit_distance(text.split(), ref.split()) for text, ref in zip(texts, references, strict=True)]
    return errors, [len(reference.split()) for reference in references]


def normalize_transcript(text: str) -> str:
    """Return the normalized text: in lower case, without punctuation, each digit as a word."""
    plain = PUNCTUATION.sub(" ", text.lower())
    return " ".join(re.sub(r"[0-9]", lambda digit: f" {DIGITS[int(digit[0])]} ", plain).split())
