"""How well attention points at the right places."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

Gold = tuple[tuple[int, int] | None, ...]


def alignment_accuracy(alignments: Iterable[tuple[Float[np.ndarray, "_target _source"], Gold]]) -> float:
    """The share of output tokens with a known origin whose strongest weight falls inside it.

    Gold gives, for each output token, the [start, stop) of the source tokens that made it, or None.
    """
    hits = total = 0
    for weights, gold in alignments:
        for row, span in zip(weights, gold, strict=False):  # a hypothesis may be shorter or longer than the reference
            if span is not None:
                total += 1
                hits += span[0] <= int(row.argmax()) < span[1]
    return hits / total if total else float("nan")
