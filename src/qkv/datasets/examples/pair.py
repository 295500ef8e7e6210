"""The example type of sequence-to-sequence datasets."""

from dataclasses import dataclass

from qkv.datasets.examples.tagged import Tagged


@dataclass(frozen=True, slots=True)
class Pair:
    """A source text and its target text.

    `gold` is the known alignment, if any: for each target character the [start, stop) span of source characters, or
    None. `parsed` has the source words and their heads, if the source is parsed.
    """

    source: str
    target: str
    gold: tuple[tuple[int, int] | None, ...] | None = None
    parsed: Tagged | None = None

    @property
    def source_input(self) -> str | Tagged:
        """Input of a translator: the parsed source if there is one, else the text."""
        return self.source if self.parsed is None else self.parsed
