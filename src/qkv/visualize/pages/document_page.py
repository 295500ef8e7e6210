"""Documents with sentences and words shaded by attention weight, as an HTML page and in the terminal."""

import html
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from qkv.interpret.document_probe import WeightedDocument, WeightedSentence
from qkv.visualize.colormap import ON_DARK, ON_LIGHT, readable_on, shade
from qkv.visualize.glyphs import clipped, visible
from qkv.visualize.pages.template import write_page
from qkv.visualize.terminal import shaded_style

SHADES = 32  # number of CSS classes from zero to the largest weight
SPACES = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)  # a token and the white space around it


def save_document_page(documents: Sequence[WeightedDocument], path: str | os.PathLike[str]) -> Path:
    """Write documents as one self-contained HTML file without scripts."""
    articles = "\n".join(map(_article, documents))
    title = "Sentence and word attention"
    return write_page(path, "document_page.html", title, {"documents": articles}, style={"shades": _style()})


def document_lines(document: WeightedDocument) -> Text:
    """Return a document for the terminal: one line per sentence, preceded by its weight."""
    (_, max_word), lines = _peaks(document), []
    for sentence in document.sentences:
        line = Text(f"{sentence.weight:6.1%}  ", style="dim")
        for before, piece, after, share in _words(sentence):
            line.append(before, style="not dim")
            line.append(visible(piece) if piece else "", style=shaded_style(share / max_word))
            line.append(after, style="not dim")
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


def _style() -> str:
    """Return CSS classes for the shades, in light and dark mode."""
    return "\n".join(
        f"  @media (prefers-color-scheme: {scheme}) {{\n{_classes(ramp)}\n  }}"
        for scheme, ramp in (("light", ON_LIGHT), ("dark", ON_DARK))
    )


def _classes(ramp: Sequence[str]) -> str:
    colours = [shade(ramp, number / (SHADES - 1)) for number in range(SHADES)]
    return "\n".join(
        f"    .s{number} {{ background: rgb{colour}; color: rgb{readable_on(colour)}; }}"
        for number, colour in enumerate(colours)
    )


def _article(document: WeightedDocument) -> str:
    max_sentence, max_word = _peaks(document)
    label, probability = next(iter(document.probabilities.items()))
    others = list(document.probabilities.items())[1:]
    truncated = f"{document.left_out} more sentence(s) truncated" if document.left_out else ""
    meta = " · ".join(filter(None, [*(f"{clipped(name)} {share:.1%}" for name, share in others), truncated]))
    rows = "\n".join(
        f'<li><span class="{_class(sentence.weight / max_sentence)}" title="{sentence.weight:.4f}">'
        f'{sentence.weight:.1%}</span><p class="words" dir="auto">{_marked(sentence, max_word)}</p></li>'
        for sentence in document.sentences
    )
    return (
        f'<article>\n<h2><bdi>{html.escape(clipped(label))}</bdi> <span class="number">{probability:.1%}</span></h2>\n'
        f'<p class="meta">{html.escape(meta)}</p>\n<ol>\n{rows}\n</ol>\n</article>'
    )


def _marked(sentence: WeightedSentence, peak: float) -> str:
    """Return the HTML of a sentence with shaded words."""
    return "".join(
        f'{before}<span class="{_class(share / peak)}" title="{share:.4f}">{html.escape(visible(piece))}</span>{after}'
        if piece
        else before
        for before, piece, after, share in _words(sentence)
    ).strip()


def _words(sentence: WeightedSentence) -> Iterator[tuple[str, str, str, float]]:
    """Yield (space before, token, space after, weight) for each token."""
    for number, (piece, share) in enumerate(zip(sentence.pieces, sentence.shares.tolist(), strict=True)):
        match = SPACES.fullmatch(piece)
        assert match is not None  # matches any string
        before, text, after = match.groups()
        yield " " if before and number else "", text, " " if after else "", share


def _peaks(document: WeightedDocument) -> tuple[float, float]:
    """Return the largest sentence weight and the largest word weight of a document."""
    return (
        max(sentence.weight for sentence in document.sentences),
        max(float(sentence.shares.max()) for sentence in document.sentences),
    )


def _class(fraction: float) -> str:
    return f"s{round(min(1.0, fraction) * (SHADES - 1))}"
