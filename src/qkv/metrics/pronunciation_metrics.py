"""Phoneme and word error rates against a dictionary that may list several pronunciations per word.

A word is correct if it matches any of them, and its errors are counted against the closest one, as is usual for
grapheme-to-phoneme models (Yao and Zweig 2015).
"""

from collections.abc import Sequence

from qkv.metrics.text_metrics import edit_distance


def phoneme_error_rate(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the edit distance per phoneme of the closest references (NaN without any).

    A pronunciation is a string of phonemes separated by spaces: "K AE1 T".
    """
    closest = [
        _closest(prediction.split(), [reference.split() for reference in variants])
        for prediction, variants in zip(predictions, references, strict=True)
    ]
    phonemes = sum(length for _, length in closest)
    return sum(errors for errors, _ in closest) / phonemes if phonemes else float("nan")


def word_error_rate(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the fraction of words that match none of their references (NaN without any)."""
    wrong = sum(
        prediction.split() not in [reference.split() for reference in variants]
        for prediction, variants in zip(predictions, references, strict=True)
    )
    return wrong / len(references) if references else float("nan")


def _closest(prediction: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Return the edit distance to the closest reference, and its length; the first one in a tie."""
    return min(
        ((edit_distance(prediction, reference), len(reference)) for reference in references), key=lambda pair: pair[0]
    )
