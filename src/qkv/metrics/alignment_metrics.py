"""Accuracy of attention as an alignment."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

Gold = tuple[tuple[int, int] | None, ...]


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
