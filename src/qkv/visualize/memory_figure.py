"""Memory access of a neural Turing machine as a PNG figure.

All panels share the time axis: inputs, outputs, and the write and read weights of each head. A model that has learned
to copy shows the same diagonal twice: it writes consecutive locations and then reads them in the same order.
"""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from qkv.interpret.memory_probe import MemoryTrace, used_locations
from qkv.visualize.plotting import QUIET, TEXT, attention_colormap, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL = 0.16  # inches, reduced to keep the figure below its maximum size
_LONGEST_SIDE = 14.0
_LEAST_WIDTH = 4.0
_GAP = 0.42  # inches between panels
_LABELS = 8  # maximum number of row labels per panel
_LABEL_HEIGHT, _LABEL_WIDTH = 0.14, 0.28  # inches; closer labels would overlap
_DOT = 0.35  # fraction of the cell size
_POINTS = 72  # per inch
_WRONG = "#d55e00"


def save_memory_png(remembered: MemoryTrace, path: str | os.PathLike[str]) -> Path:
    """Plot inputs, outputs, and write and read weights as a PNG."""
    return save_figure(_draw(remembered), path, dpi=160, pad_inches=0.2)


def _draw(remembered: MemoryTrace) -> "Figure":
    shown = used_locations(remembered.write_weights, remembered.read_weights)
    answer = remembered.predicted * remembered.answer_mask[:, None]
    panels = [
        (name, values.T, list(range(values.shape[1])))
        for name, values in (("input", remembered.inputs), ("answer", answer))
    ]
    for verb, heads in (("written at", remembered.write_weights), ("read at", remembered.read_weights)):
        for number, weights in enumerate(heads, start=1):
            name = verb if len(heads) == 1 else f"{verb}, head {number}"
            panels.append((name, weights.T[shown], shown))

    steps = len(remembered.answer_mask)
    rows = sum(len(values) for _, values, _ in panels)
    cell = min(_CELL, (_LONGEST_SIDE - _GAP * len(panels)) / rows, _LONGEST_SIDE / steps)
    width, height = max(_LEAST_WIDTH, cell * steps), cell * rows + _GAP * len(panels)
    figure = new_figure(width, height)
    top = height
    for name, values, numbers in panels:
        bottom = top - cell * len(values)
        axes = figure.add_axes((0, bottom / height, 1, (top - bottom) / height))
        _panel(axes, name, values, numbers, (cell, width / steps))
        if name == "answer":
            _mark_wrong(axes, remembered, cell)
        top = bottom - _GAP
    axes.set_xlabel("step", fontsize=8, color=QUIET)
    axes.tick_params(labelbottom=True, labelsize=7, labelcolor=QUIET)
    return figure


def _panel(
    axes: "Axes", name: str, values: Float[np.ndarray, "rows steps"], numbers: list[int], cell: tuple[float, float]
) -> None:
    """Draw one heat map over time with row labels; `cell` is the height and width of a cell in inches."""
    axes.imshow(values, cmap=attention_colormap(), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_title(name, loc="left", pad=4, fontsize=9, color=TEXT)
    high, wide = cell
    every = max(math.ceil(len(numbers) / _LABELS), math.ceil(_LABEL_HEIGHT / high))
    axes.set_yticks(range(0, len(numbers), every), [str(number) for number in numbers[::every]])
    axes.set_xticks(range(0, values.shape[1], 1 if wide >= _LABEL_WIDTH else 5 * math.ceil(_LABEL_WIDTH / wide / 5)))
    axes.tick_params(length=0, pad=3, labelbottom=False, labelsize=7, labelcolor=QUIET)
    axes.spines[:].set_visible(False)


def _mark_wrong(axes: "Axes", remembered: MemoryTrace, cell: float) -> None:
    """Mark wrong output bits with dots that leave the bit visible."""
    wrong = ((remembered.predicted > 0.5) != (remembered.targets > 0.5)) & (remembered.answer_mask[:, None] > 0)
    steps, bits = np.nonzero(wrong)
    axes.plot(
        steps, bits, linestyle="none", marker="o", markersize=_DOT * cell * _POINTS, markeredgewidth=0, color=_WRONG
    )
    total = wrong[remembered.answer_mask > 0].size
    title = "answer" if not len(steps) else f"answer: {len(steps)} of {total} bits wrong"
    axes.set_title(title, loc="left", pad=4, fontsize=9, color=TEXT)
