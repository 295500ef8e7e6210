"""Statistics of attention heads: entropy, distance and diagonality."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

CHUNK = 256  # queries at a time, so that intermediate results stay small


class HeadStatistics(NamedTuple):
    """Statistics of one head over all its queries; NaN where they are undefined.

    entropy       mean over queries of -sum_j w_ij log2 w_ij, in bits
    distance      mean over queries of sum_j w_ij |p_i - j|, in keys, with p_i the position of query i among the keys
    diagonality   correlation of the positions i of queries and j of keys, weighted by w_ij: 1 for a diagonal
    """

    peak: float  # largest weight
    entropy: float
    distance: float
    diagonality: float


def head_statistics(weights: Float[np.ndarray, "queries keys"]) -> HeadStatistics:
    """Return the statistics of a head; queries and keys of unequal number are matched by relative position."""
    queries, keys = weights.shape
    if weights.size == 0:
        return HeadStatistics(*[float("nan")] * 4)
    rows, columns = np.arange(queries, dtype=np.float64), np.arange(keys, dtype=np.float64)
    positions = (rows + 0.5) * keys / queries - 0.5
    entropy = distance = 0.0
    for begin in range(0, queries, CHUNK):
        w = weights[begin : begin + CHUNK].astype(np.float64)
        logs = np.log2(w, out=np.zeros_like(w), where=w > 0)
        entropy -= float(np.vdot(w, logs))
        distance += float(np.vdot(w, np.abs(positions[begin : begin + CHUNK, None] - columns)))
    return HeadStatistics(float(weights.max()), entropy / queries, distance / queries, _correlation(weights))


def _correlation(w: Float[np.ndarray, "queries keys"]) -> float:
    """Return the correlation of row and column indices under the weights; NaN if one of them does not vary."""
    total = w.sum(dtype=np.float64)
    if total == 0:
        return float("nan")
    by_row, by_column = w.sum(axis=1, dtype=np.float64) / total, w.sum(axis=0, dtype=np.float64) / total
    rows, columns = np.arange(len(by_row), dtype=np.float64), np.arange(len(by_column), dtype=np.float64)
    rows -= by_row @ rows
    columns -= by_column @ columns
    variances = (by_row @ rows**2) * (by_column @ columns**2)
    chunks = (slice(begin, begin + CHUNK) for begin in range(0, len(rows), CHUNK))
    covariance = sum(float(rows[chunk] @ (w[chunk] @ columns)) for chunk in chunks) / total
    return float(covariance / np.sqrt(variances)) if variances > 1e-12 else float("nan")
