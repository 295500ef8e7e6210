"""How close pronunciations are to a dictionary, which may list several for one word.

A word is right if it is said in any of the listed ways, and its errors are counted against the nearest of them, as
is usual for letter-to-sound models (Yao and Zweig 2015).
"""

from collections.abc import Sequence

from qkv.metrics.text import edit_distance


def phoneme_error_rate(said: Sequence[str], listed: Sequence[Sequence[str]]) -> float:
    """Wrong, missing and needless phonemes, per phoneme of the nearest pronunciations (NaN without any).

    A pronunciation is written as phonemes with spaces between them: "K AE1 T".
    """
    nearest = [_nearest(one.split(), [way.split() for way in ways]) for one, ways in zip(said, listed, strict=True)]
    phonemes = sum(length for _, length in nearest)
    return sum(errors for errors, _ in nearest) / phonemes if phonemes else float("nan")


def word_error_rate(said: Sequence[str], listed: Sequence[Sequence[str]]) -> float:
    """The share of words that are said in none of the listed ways (NaN of none)."""
    wrong = sum(one.split() not in [way.split() for way in ways] for one, ways in zip(said, listed, strict=True))
    return wrong / len(listed) if listed else float("nan")


def _nearest(said: Sequence[str], ways: Sequence[Sequence[str]]) -> tuple[int, int]:
    """The errors against the nearest way, and how many phonemes that way has; of equally near ones, the first."""
    return min(((edit_distance(said, way), len(way)) for way in ways), key=lambda found: found[0])
