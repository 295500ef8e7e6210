"""The unit of every sequence-to-sequence data set."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """A source text and the target text to make of it.

    `gold`, where it is known, has for each target character the [start, stop) source characters that made it, or None.
    """

    source: str
    target: str
    gold: tuple[tuple[int, int] | None, ...] | None = None
