"""Several matrices in one PNG figure: the heads of a model, or scores beside weights."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.visualize.plotting import QUIET, attention_colormap, new_figure, save_figure

MASKED = "#d9dbe0"  # color of masked cells
_GAP, _TITLE, _LABELS = 0.12, 0.2, 0.65  # inches between matrices, for a title, for labels


@dataclass(frozen=True)
class MatrixPanel:
    """A matrix with its title and labels; masked cells of a masked array are gray."""

    title: str
    values: Any  # array or masked array [rows, columns]
    rows: tuple[str, ...]  # labels; () for none
    columns: tuple[str, ...]


def save_matrices(panels: Sequence[MatrixPanel], path: str | os.PathLike[str], *, columns: int, cell: float) -> Path:
    """Draw matrices in a grid, each with its own range of colors; `cell` is the size of a cell in inches."""
    height, width = panels[0].values.shape
    labelled = bool(panels[0].rows or panels[0].columns)
    pitch_x = width * cell + _GAP + labelled * _LABELS
    pitch_y = height * cell + _GAP + _TITLE + labelled * _LABELS
    lines = math.ceil(len(panels) / columns)
    figure = new_figure(columns * pitch_x, lines * pitch_y)
    colors = attention_colormap().with_extremes(bad=MASKED)
    for number, panel in enumerate(panels):
        line, column = divmod(number, columns)
        box = (column / columns, 1 - (line * pitch_y + height * cell) / (lines * pitch_y),
               width * cell / (columns * pitch_x), height * cell / (lines * pitch_y))  # fmt: skip
        axes = figure.add_axes(box)
        axes.imshow(panel.values, cmap=colors, aspect="auto", interpolation="nearest")
        axes.set_xticks(range(len(panel.columns)), panel.columns, rotation=90)
        axes.set_yticks(range(len(panel.rows)), panel.rows)
        axes.tick_params(length=0, labelsize=7)
        axes.spines[:].set_color(MASKED)
        axes.set_title(panel.title, fontsize=8 if labelled else 5, color=QUIET, pad=2)
    return save_figure(figure, path, dpi=120)
