"""What a neural Turing machine did with a sequence, as a PNG figure: step by step, and location by location.

Time runs from left to right in all parts: what went in, what came out, where each head wrote, and where it read. A
machine that has learned to copy draws the same slope twice: it wrote one location after the other, and so it reads.
"""

import io
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from qkv.errors import InputError
from qkv.runtime.files import write_atomically
from qkv.tasks.memory_probe import MemoryTrace
from qkv.view.ink import ON_LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL = 0.16  # inches, until the figure would pass its longest side
_LONGEST_SIDE = 14.0
_LEAST_WIDTH = 4.0
_GAP = 0.42  # inches between the parts
_MARGIN = 2  # locations that are shown around those that were used
_USED = 0.05  # the weight from which on a location counts as used
_LABELS = 8  # rows of a part that are numbered, at most
_LABEL_HEIGHT, _LABEL_WIDTH = 0.14, 0.28  # inches; closer labels would touch
_DOT = 0.35  # of the side of a cell
_POINTS = 72  # an inch
_TEXT = "#23262f"
_QUIET = "#767b88"
_WRONG = "#d55e00"


def save_memory_png(remembered: MemoryTrace, path: str | os.PathLike[str]) -> Path:
    """Draw what went in and came out, and where the heads wrote and read, and write it as a PNG."""
    figure = _draw(remembered)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=160, bbox_inches="tight", pad_inches=0.2)
    write_atomically(Path(path), image.getvalue())
    return Path(path)


def used_locations(weights: Float[np.ndarray, "heads steps locations"]) -> list[int]:
    """The locations that some head looked at and a few around them, in order; the last one is beside the first.

    Of the ways to cut that ring, it is the one that leaves out the longest stretch that nobody looked at.
    """
    count = weights.shape[-1]
    used = np.flatnonzero(weights.max(axis=(0, 1)) >= _USED)
    if not len(used):
        return list(range(count))
    unused = np.diff(used, append=used[0] + count)  # how far it is from each to the next
    longest = int(unused.argmax())
    if unused[longest] <= 2 * _MARGIN + 1:
        return list(range(count))
    first = int(used[(longest + 1) % len(used)]) - _MARGIN
    return [place % count for place in range(first, first + count - int(unused[longest]) + 2 * _MARGIN + 1)]


def _draw(remembered: MemoryTrace) -> "Figure":
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise InputError("PNG figures need matplotlib: pip install 'qkv[view]'") from missing
    shown = used_locations(np.concatenate((remembered.write_weights, remembered.read_weights)))
    answer = remembered.predicted * remembered.answer_mask[:, None]
    parts = [
        (name, values.T, list(range(values.shape[1])))
        for name, values in (("input", remembered.inputs), ("answer", answer))
    ]
    for verb, heads in (("written at", remembered.write_weights), ("read at", remembered.read_weights)):
        for number, weights in enumerate(heads, start=1):
            name = verb if len(heads) == 1 else f"{verb}, head {number}"
            parts.append((name, weights.T[shown], shown))

    steps = len(remembered.answer_mask)
    rows = sum(len(values) for _, values, _ in parts)
    cell = min(_CELL, (_LONGEST_SIDE - _GAP * len(parts)) / rows, _LONGEST_SIDE / steps)
    width, height = max(_LEAST_WIDTH, cell * steps), cell * rows + _GAP * len(parts)
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    top = height
    for name, values, numbers in parts:
        bottom = top - cell * len(values)
        axes = figure.add_axes((0, bottom / height, 1, (top - bottom) / height))
        _part(axes, name, values, numbers, (cell, width / steps))
        if name == "answer":
            _mark_wrong(axes, remembered, cell)
        top = bottom - _GAP
    axes.set_xlabel("step", fontsize=8, color=_QUIET)
    axes.tick_params(labelbottom=True, labelsize=7, labelcolor=_QUIET)
    return figure


def _part(
    axes: "Axes", name: str, values: Float[np.ndarray, "rows steps"], numbers: list[int], cell: tuple[float, float]
) -> None:
    """One heat map over time, with the numbers of its rows; a cell of it is so many inches high and wide."""
    from matplotlib.colors import LinearSegmentedColormap

    ramp = LinearSegmentedColormap.from_list("attention", ON_LIGHT)
    axes.imshow(values, cmap=ramp, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_title(name, loc="left", pad=4, fontsize=9, color=_TEXT)
    high, wide = cell
    every = max(math.ceil(len(numbers) / _LABELS), math.ceil(_LABEL_HEIGHT / high))
    axes.set_yticks(range(0, len(numbers), every), [str(number) for number in numbers[::every]])
    axes.set_xticks(range(0, values.shape[1], 1 if wide >= _LABEL_WIDTH else 5 * math.ceil(_LABEL_WIDTH / wide / 5)))
    axes.tick_params(length=0, pad=3, labelbottom=False, labelsize=7, labelcolor=_QUIET)
    axes.spines[:].set_visible(False)


def _mark_wrong(axes: "Axes", remembered: MemoryTrace, cell: float) -> None:
    """A dot on each bit of the answer that is wrong, which leaves the bit itself to be seen."""
    wrong = ((remembered.predicted > 0.5) != (remembered.targets > 0.5)) & (remembered.answer_mask[:, None] > 0)
    steps, bits = np.nonzero(wrong)
    axes.plot(
        steps, bits, linestyle="none", marker="o", markersize=_DOT * cell * _POINTS, markeredgewidth=0, color=_WRONG
    )
    title = (
        "answer"
        if not len(steps)
        else f"answer: {len(steps)} of {wrong[remembered.answer_mask > 0].size} bits are wrong"
    )
    axes.set_title(title, loc="left", pad=4, fontsize=9, color=_TEXT)
