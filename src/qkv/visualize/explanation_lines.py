"""Explanations in the terminal: units with their scores by several methods, as numbers and bars."""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from qkv.interpret.explanation import Explanation
from qkv.pipelines.output import AttentionMap
from qkv.runtime.text import printable
from qkv.visualize.glyphs import visible
from qkv.visualize.terminal import heat_map, shaded_style

TOP = 24  # units shown, unless asked for more
MAX_LABEL = 20
MAX_SENTENCE = 34
BAR = 10  # cells of a bar at the greatest score
NUMBER = 9  # cells of a number
MAX_BARS = 2  # methods that have a bar, so that a line fits into 80 columns
TOP_PER_OUTPUT = 3
SHORT_NAMES = {"value_weighted": "value", "integrated_gradients": "int.grad.", "leave_one_out": "leave-one"}


def explanation_lines(explanations: Sequence[Explanation], top: int = TOP) -> RenderableType:
    """Return one line per unit for one output, one line per output for several, or a grid for a region of an image."""
    first = explanations[0]
    if len(first.outputs) > 1:
        return Text("\n").join(line for explanation in explanations for line in _output_lines(explanation, top))
    if first.explained.grid is not None:
        return Group(*map(_grid, explanations))
    return Text("\n").join(_unit_lines(explanations, top))


def _unit_lines(explanations: Sequence[Explanation], top: int) -> Iterator[Text]:
    """Yield a heading, and one line per unit: in order, or the strongest ones if there are too many."""
    first = explanations[0]
    count = len(first.units)
    shown = range(count)
    if top and count > top:
        shown = np.argsort(-np.abs(first.all_scores[0]), kind="stable")[:top].tolist()
    sentences = first.explained.unit == "sentence"
    labels = [printable(unit, MAX_SENTENCE) if sentences else visible(unit.strip() or unit) for unit in first.units]
    width = min(MAX_SENTENCE if sentences else MAX_LABEL, max(cell_len(labels[number]) for number in shown))
    bars = len(explanations) <= MAX_BARS
    if bars:
        names = [f"    {explanation.method:{NUMBER + BAR - 1}}" for explanation in explanations]
    else:
        names = [f" {SHORT_NAMES.get(e.method, e.method):>{NUMBER}}" for e in explanations]
    yield Text(" " * width + "".join(names), style="bold")
    for number in shown:
        line = Text(_fit(labels[number], width))
        for explanation in explanations:
            row = explanation.all_scores[0]
            line.append_text(_score(float(row[number]), float(np.abs(row).max()) or 1.0, bars=bars))
        yield line
    if len(shown) < count:
        yield Text(f"... and {count - len(shown)} more {first.explained.unit}s (--top 0 shows all)", style="dim")


def _score(score: float, peak: float, *, bars: bool) -> Text:
    """Return a number and, if it fits, a bar; the bar of a negative score is lighter."""
    fraction = abs(score) / peak
    text = Text(f" {score:{NUMBER}.3f}", style="" if bars or score <= 0 else shaded_style(fraction))
    if bars:
        cells = round(fraction * BAR)
        text.append("  " + set_cell_size(("█" if score > 0 else "░") * cells, BAR))
    return text


def _output_lines(explanation: Explanation, top: int) -> Iterator[Text]:
    """Yield one line per output with its most important units."""
    yield Text(explanation.method, style="bold")
    labels = [visible(output.strip() or output) for output in explanation.outputs]
    width = min(MAX_LABEL, max(map(cell_len, labels)))
    for number, label in enumerate(labels[: top or None]):
        best = explanation.top(TOP_PER_OUTPUT, number)
        units = "  ".join(f"{visible(unit.strip() or unit)} {score:.2f}" for unit, score in best)
        yield Text(f"{number:3} {_fit(label, width)} {explanation.probabilities[number]:6.1%}  <- {units}")
    if top and len(labels) > top:
        yield Text(f"... and {len(labels) - top} more outputs (--top 0 shows all)", style="dim")


def _grid(explanation: Explanation) -> RenderableType:
    """Return the positive scores of the regions of an image as a heat map."""
    grid = explanation.explained.grid
    assert grid is not None
    rows, columns = (tuple(map(str, range(1, size + 1))) for size in grid)
    scores = np.maximum(explanation.all_scores[0], 0.0).reshape(1, *grid)
    return heat_map(AttentionMap(f"{explanation.method}, {explanation.outputs[0].strip()}", rows, columns, scores))


def _fit(text: str, width: int) -> str:
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
