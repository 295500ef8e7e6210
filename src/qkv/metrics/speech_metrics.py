"""Word error rate of transcripts."""

import re
from collections.abc import Sequence

from qkv.metrics.text_metrics import edit_distance

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PUNCTUATION = re.compile(r"[^\w\s']|_")


def word_error_rate(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return substituted, deleted and inserted words per reference word, over all texts (NaN without any)."""
    errors = sum(edit_distance(text.split(), ref.split()) for text, ref in zip(texts, references, strict=True))
    words = sum(len(reference.split()) for reference in references)
    return errors / words if words else float("nan")


def normalize_transcript(text: str) -> str:
    """Return the normalized text: in lower case, without punctuation, each digit as a word."""
    plain = PUNCTUATION.sub(" ", text.lower())
    return " ".join(re.sub(r"[0-9]", lambda digit: f" {DIGITS[int(digit[0])]} ", plain).split())
