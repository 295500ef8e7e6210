"""The example type of sequence-to-sequence datasets."""

import re
from dataclasses import dataclass

from qkv.datasets.examples.tagged import Tagged

LANGUAGE_TOKEN = re.compile(r"<2([a-z]{2,8})>")


def language_token(language: str) -> str:
    """Return the token that begins a source to be translated into a language: <2de> (Johnson et al. 2017)."""
    return f"<2{language}>"


def target_language(source: str) -> str:
    """Return the language of the token at the beginning of a source; "" if there is none."""
    found = LANGUAGE_TOKEN.match(source)
    return "" if found is None else found[1]


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
