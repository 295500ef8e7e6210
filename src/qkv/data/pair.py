"""The unit of every sequence-to-sequence data set."""

from dataclasses import dataclass

from qkv.data.tagged import Tagged


@dataclass(frozen=True, slots=True)
class Pair:
    """A source text and the target text to make of it.

    `gold`, where it is known, has for each target character the [start, stop) source characters that made it, or None.
    `parsed`, where it is known, has the words of the source and their heads.
    """

    source: str
    target: str
    gold: tuple[tuple[int, int] | None, ...] | None = None
    parsed: Tagged | None = None

    @property
    def given(self) -> str | Tagged:
        """The source as a translator is given it: parsed, where that is known."""
        return self.source if self.parsed is None else self.parsed
