"""HTML page of explanations: the units of an input shaded by their scores, one row per output and method."""

import html
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from qkv.interpret.explainable_decoders import ImageCaption
from qkv.interpret.explanation import Explanation
from qkv.runtime.text import printable
from qkv.visualize.colormap import ON_DARK, ON_LIGHT, readable_on, shade
from qkv.visualize.glyphs import LONGEST_TEXT, clipped, visible
from qkv.visualize.image_overlay import coloured, data_url, resized
from qkv.visualize.pages.template import write_page

SHADES = 32  # number of CSS classes from zero to the greatest score
TILE = 144  # longer side of an image in pixels
# Against the output: the hue opposite to that of the attention weights, with the same steps of lightness.
AGAINST_LIGHT = ("#fdf4f0", "#f8d3c4", "#f0b199", "#e38e6f", "#cf6b48", "#b04d2b", "#8c3517", "#68230c", "#451405")
AGAINST_DARK = ("#251a16", "#4a2b1f", "#713c27", "#984f30", "#be6640", "#da8560", "#eca688", "#f8c8b3", "#ffe8de")


def save_explanations(explanations: Sequence[Explanation], path: str | os.PathLike[str], source: str = "") -> Path:
    """Write explanations of one prediction as a self-contained HTML file without scripts."""
    first = explanations[0]
    parts = {
        "prediction": html.escape(clipped(first.prediction)),
        "source": html.escape(clipped(source)),
        "methods": "\n".join(map(_section, explanations)),
    }
    image = isinstance(first.explained, ImageCaption)
    return write_page(path, "explanation_page.html", "Explanation", parts, style={"shades": _style()}, pictures=image)


def _section(explanation: Explanation) -> str:
    rows = "\n".join(_row(explanation, number) for number in range(len(explanation.outputs)))
    name = html.escape(explanation.method.replace("_", " "))
    return f"<section>\n<h2>{name}</h2>\n{_measured(explanation)}<table>\n{rows}\n</table>\n</section>"


def _measured(explanation: Explanation) -> str:
    """Return a line on the faithfulness of a method, if it has been measured."""
    if "faithfulness" not in vars(explanation):
        return ""
    comprehensiveness, sufficiency = (
        float(np.mean([getattr(measured, name) for measured in explanation.faithfulness]))
        for name in ("aopc_comprehensiveness", "aopc_sufficiency")
    )
    return f'<p class="meta">AOPC comprehensiveness {comprehensiveness:.3f}, sufficiency {sufficiency:.3f}</p>\n'


def _row(explanation: Explanation, number: int) -> str:
    output = html.escape(visible(explanation.outputs[number].strip() or explanation.outputs[number]))
    p, scores = explanation.probabilities[number], explanation.all_scores[number]
    image = isinstance(explanation.explained, ImageCaption)
    cell = _image(explanation, scores) if image else _words(explanation, scores)
    return f'<tr><th scope="row"><bdi>{output}</bdi> <span class="number">{p:.1%}</span></th><td>{cell}</td></tr>'


def _words(explanation: Explanation, scores: Float[np.ndarray, "units"]) -> str:
    """Return the units of a text, shaded by score."""
    peak = float(np.abs(scores).max()) or 1.0
    sentences = explanation.explained.unit == "sentence"
    spans = []
    for unit, spaced, score in zip(explanation.units, explanation.explained.spaced, scores.tolist(), strict=True):
        text = html.escape(printable(unit, LONGEST_TEXT) if sentences else visible(unit.strip() or unit))
        before = " " if spaced else ""
        spans.append(f'{before}<span class="{_class(score / peak)}" title="{score:.4f}">{text}</span>')
    separator = "<br>" if sentences else ""
    return f'<p class="words" dir="auto">{separator.join(spans).strip()}</p>'


def _image(explanation: Explanation, scores: Float[np.ndarray, "units"]) -> str:
    """Return the image in grey, coloured by the positive scores of its regions."""
    assert isinstance(explanation.explained, ImageCaption)
    assert explanation.explained.grid is not None
    grey = resized(explanation.explained.pixels, TILE).convert("L")
    overlay = coloured(grey, np.maximum(scores, 0.0).reshape(explanation.explained.grid))
    best = html.escape(explanation.units[int(scores.argmax())])
    size = f'width="{overlay.width}" height="{overlay.height}"'
    return f'<img src="{data_url(overlay)}" {size} alt="Most important region: {best}">'


def _class(fraction: float) -> str:
    return f"{'s' if fraction >= 0 else 'n'}{round(min(1.0, abs(fraction)) * (SHADES - 1))}"


def _style() -> str:
    """Return CSS classes for the shades, in light and dark mode."""
    schemes = (("light", ON_LIGHT, AGAINST_LIGHT), ("dark", ON_DARK, AGAINST_DARK))
    return "\n".join(
        f"  @media (prefers-color-scheme: {scheme}) {{\n{_classes('s', support)}\n{_classes('n', against)}\n  }}"
        for scheme, support, against in schemes
    )


def _classes(prefix: str, ramp: Sequence[str]) -> str:
    colours = [shade(ramp, number / (SHADES - 1)) for number in range(SHADES)]
    return "\n".join(
        f"    .{prefix}{number} {{ background: rgb{colour}; color: rgb{readable_on(colour)}; }}"
        for number, colour in enumerate(colours)
    )
