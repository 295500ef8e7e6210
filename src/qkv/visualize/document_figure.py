"""A document as a PNG figure: words shaded by their attention weights, with a bar for the weight of each sentence."""

import os
from pathlib import Path
from typing import Any

from qkv.interpret.document_probe import WeightedDocument
from qkv.visualize.glyphs import visible
from qkv.visualize.plotting import QUIET, TEXT, attention_colormap, new_figure, save_figure

_LINE, _CHARACTER = 0.22, 0.078  # inches: height of a line, width of a character of the font
_LONGEST, _LEFT = 110, 1.0  # characters in a line; inches before the text, for the weight of the sentence
_BAR, _GAP = 0.5, 0.08  # inches: longest bar, space before the text
_DARKEST = 0.55  # of the color map, so that text can be read
_SIZE = 8.5  # of the font, in points


def save_document_png(document: WeightedDocument, path: str | os.PathLike[str]) -> Path:
    """Write one line per sentence; shades go from the smallest to the largest weight of the sentence."""
    from matplotlib.patches import Rectangle

    lines = len(document.sentences) + 1
    width, height = _LEFT + _LONGEST * _CHARACTER, lines * _LINE
    figure = new_figure(width, height)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    font: dict[str, Any] = {"family": "monospace", "fontsize": _SIZE, "va": "center", "parse_math": False}
    probability = max(document.probabilities.values())
    axes.text(0, _LINE / 2, f"{document.label} ({probability:.0%})", color=QUIET, **font)
    colors, largest = attention_colormap(), max(sentence.weight for sentence in document.sentences)
    for number, sentence in enumerate(document.sentences, start=1):
        y = number * _LINE
        length = _BAR * sentence.weight / largest
        axes.barh(y + _LINE / 2, length, 0.6 * _LINE, left=_LEFT - _BAR - _GAP, color=colors(0.7))
        axes.text(0, y + _LINE / 2, f"{sentence.weight:.2f}", color=TEXT, **font)
        start, least, peak = 0, float(sentence.weights.min()), float(sentence.weights.max())
        for piece, weight in zip(sentence.pieces, sentence.weights, strict=True):
            text = visible(piece.strip())
            if start + len(text) > _LONGEST:
                break
            shade = (_LEFT + start * _CHARACTER, y + 0.1 * _LINE), len(text) * _CHARACTER, 0.8 * _LINE
            color = colors(_DARKEST * (float(weight) - least) / (peak - least or 1.0))
            axes.add_patch(Rectangle(*shade, color=color, linewidth=0))
            axes.text(_LEFT + start * _CHARACTER, y + _LINE / 2, text, color=TEXT, **font)
            start += len(text) + 1
    return save_figure(figure, path, dpi=120)
