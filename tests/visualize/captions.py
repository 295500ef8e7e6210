"""Captions with known attention."""

import numpy as np

from qkv.pipelines.captioner import Caption
from qkv.pipelines.output import AttentionMap

PIXELS = np.full((8, 12, 3), (250, 250, 250), dtype=np.uint8)


def captioned(words: tuple[str, ...], cells: tuple[int, ...], source: str = "a.png") -> Caption:
    """A 2 by 3 grid in which each word attends to one cell."""
    weights = np.zeros((1, len(words), 6))
    weights[0, np.arange(len(words)), cells] = 1.0
    columns = tuple(f"{row},{column}" for row in (1, 2) for column in (1, 2, 3))
    maps = (AttentionMap("decoder", words, columns, weights),)
    return Caption(source, "".join(words).strip(), -0.5, maps, pixels=PIXELS, grid=(2, 3))
