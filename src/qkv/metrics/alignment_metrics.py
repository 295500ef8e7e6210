"""Attention weights as an alignment: of output tokens with source tokens, and of words with objects in an image."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

Gold = tuple[tuple[int, int] | None, ...]
Box = tuple[int, int, int, int]  # top, left, bottom, right; bottom and right are exclusive


def alignment_accuracy(alignments: Iterable[tuple[Float[np.ndarray, "_target _source"], Gold]]) -> float:
    """Return the fraction of aligned output tokens whose largest weight falls inside their gold span.

    Gold gives the span [start, stop) of source tokens for each output token, or None if it is not aligned.
    """
    hits = total = 0
    for weights, gold in alignments:
        for row, span in zip(weights, gold, strict=False):  # a hypothesis may be shorter or longer than the reference
            if span is not None:
                total += 1
                hits += span[0] <= int(row.argmax()) < span[1]
    return hits / total if total else float("nan")


def inside(position: int, grid: tuple[int, int], size: tuple[int, int], box: Box) -> bool:
    """Return whether the center of a grid cell (row-major index) lies in a box of the image."""
    (rows, columns), (height, width) = grid, size
    row, column = divmod(position, columns)
    y, x = (row + 0.5) * height / rows, (column + 0.5) * width / columns
    top, left, bottom, right = box
    return top <= y < bottom and left <= x < right
