"""Documents in the terminal, with words shaded by attention weight."""

import re
from collections.abc import Iterator

from rich.text import Text

from qkv.interpret.document_probe import WeightedDocument, WeightedSentence
from qkv.visualize.glyphs import ELLIPSIS, visible
from qkv.visualize.terminal import shaded_style

SPACES = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)  # a token and the white space around it


def document_lines(document: WeightedDocument) -> Text:
    """Return a document for the terminal: one line per sentence, preceded by its weight."""
    peak = max(float(sentence.shares.max()) for sentence in document.sentences)
    lines = []
    for sentence in document.sentences:
        line = Text(f"{sentence.weight:6.1%}  ", style="dim")
        for before, piece, after, share in _words(sentence):
            line.append(before, style="not dim")
            line.append(visible(piece) if piece else "", style=shaded_style(share / peak))
            line.append(after, style="not dim")
        line.rstrip()
        if sentence.continues:
            line.append(ELLIPSIS, style="dim")
        lines.append(line)
    return Text("\n").join(lines)


def _words(sentence: WeightedSentence) -> Iterator[tuple[str, str, str, float]]:
    """Yield (space before, token, space after, weight) for each token."""
    for number, (piece, share) in enumerate(zip(sentence.pieces, sentence.shares.tolist(), strict=True)):
        match = SPACES.fullmatch(piece)
        assert match is not None  # matches any string
        before, text, after = match.groups()
        yield " " if before and number else "", text, " " if after else "", share
