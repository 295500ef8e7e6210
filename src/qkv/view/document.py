"""A document whose sentences and words are shaded by how much they counted: as a page, and in the terminal."""

import html
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.color import Color
from rich.style import Style
from rich.text import Text

from qkv.tasks.document_probe import WeightedDocument, WeightedSentence
from qkv.view.glyphs import clipped, visible
from qkv.view.ink import ON_DARK, ON_LIGHT, readable_on, shade
from qkv.view.template import write_page

SHADES = 32  # from nothing to the largest weight: a page without a script names each by a class
SPACES = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)  # a piece, and the white space around it


def save_document_page(
    documents: Sequence[WeightedDocument], path: str | os.PathLike[str], *, title: str = "What counted in the text"
) -> Path:
    """Write documents as one HTML file that needs no network, no script, and nothing beside it."""
    articles = "\n".join(map(_article, documents))
    return write_page(path, "document.html", title, {"documents": articles}, style={"shades": _style()})


def document_lines(document: WeightedDocument) -> Text:
    """The same for a terminal: a line for each sentence, with its share before it."""
    (_, of_words), lines = _peaks(document), []
    for sentence in document.sentences:
        line = Text(f"{sentence.weight:6.1%}  ", style="dim")
        for before, piece, after, share in _words(sentence):
            line.append(before, style="not dim")
            line.append(visible(piece) if piece else "", style=_shaded(share / of_words))
            line.append(after, style="not dim")
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


def _shaded(fraction: float) -> Style:
    background = shade(ON_DARK, fraction)
    return Style(color=Color.from_rgb(*readable_on(background)), bgcolor=Color.from_rgb(*background), dim=False)


def _style() -> str:
    """A class for each shade, on light and on dark paper."""
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
    of_sentences, of_words = _peaks(document)
    label, probability = next(iter(document.probabilities.items()))
    others = list(document.probabilities.items())[1:]
    left_out = f"{document.left_out} more sentence(s) were not read" if document.left_out else ""
    meta = " · ".join(filter(None, [*(f"{clipped(name)} {share:.1%}" for name, share in others), left_out]))
    rows = "\n".join(
        f'<li><span class="{_class(sentence.weight / of_sentences)}" title="{sentence.weight:.4f}">'
        f'{sentence.weight:.1%}</span><p class="words" dir="auto">{_marked(sentence, of_words)}</p></li>'
        for sentence in document.sentences
    )
    return (
        f'<article>\n<h2><bdi>{html.escape(clipped(label))}</bdi> <span class="number">{probability:.1%}</span></h2>\n'
        f'<p class="meta">{html.escape(meta)}</p>\n<ol>\n{rows}\n</ol>\n</article>'
    )


def _marked(sentence: WeightedSentence, peak: float) -> str:
    """The words of a sentence, each on its shade."""
    return "".join(
        f'{before}<span class="{_class(share / peak)}" title="{share:.4f}">{html.escape(visible(piece))}</span>{after}'
        if piece
        else before
        for before, piece, after, share in _words(sentence)
    ).strip()


def _words(sentence: WeightedSentence) -> Iterator[tuple[str, str, str, float]]:
    """White space, a piece, white space, and how much the piece counts."""
    for number, (piece, share) in enumerate(zip(sentence.pieces, sentence.shares.tolist(), strict=True)):
        found = SPACES.fullmatch(piece)
        assert found is not None  # it may match nothing
        before, text, after = found.groups()
        yield " " if before and number else "", text, " " if after else "", share


def _peaks(document: WeightedDocument) -> tuple[float, float]:
    """The largest weight of a sentence, and of a word in the document."""
    return (
        max(sentence.weight for sentence in document.sentences),
        max(float(sentence.shares.max()) for sentence in document.sentences),
    )


def _class(fraction: float) -> str:
    return f"s{round(min(1.0, fraction) * (SHADES - 1))}"
