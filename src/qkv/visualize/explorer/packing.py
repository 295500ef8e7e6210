"""Attention weights as compact JSON values: all weights as 16-bit integers, or the largest of each row."""

import base64
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from qkv.errors import InputError
from qkv.interpret.head_statistics import HeadStatistics, head_statistics
from qkv.pipelines.output import AttentionMap
from qkv.visualize.selection import checked_weights

STEPS = 65535  # weights are stored as 16-bit integers, in steps of 1 / 65535
OVERVIEW = 48  # rows and columns of a thumbnail
LARGEST_WITHOUT_OVERVIEW = 96  # tokens up to which the weights themselves are drawn as a thumbnail
MAX_COLUMNS = 65536
LEAST_KEPT = 2  # weights of a row; with fewer, layers are left out


class Shape(NamedTuple):
    """Heads, rows and columns of an attention map."""

    heads: int
    rows: int
    columns: int

    @property
    def dense_bytes(self) -> int:
        """Size of all weights in base64."""
        return _base64_size(2 * self.heads * self.rows * self.columns)

    def sparse_bytes(self, k: int) -> int:
        """Size in base64 of the k largest weights of each row, of all heads and of their average."""
        return _base64_size(4 * (self.heads + 1) * self.rows * k)

    @property
    def overview_bytes(self) -> int:
        """Size of the thumbnails in base64."""
        return _base64_size(2 * (self.heads + 1) * OVERVIEW**2) if self.needs_overview else 0

    @property
    def needs_overview(self) -> bool:
        """Whether a map has too many tokens to be drawn as a thumbnail."""
        return max(self.rows, self.columns) > LARGEST_WITHOUT_OVERVIEW

    def bytes(self, k: int | None) -> int:
        """Size of the map if the k largest weights of each row are kept (None: all)."""
        kept = self.dense_bytes if k is None else min(self.dense_bytes, self.sparse_bytes(k))
        return kept + self.overview_bytes


class Plan(NamedTuple):
    """What fits into a page: the first examples, the first layers of each, and the k largest weights of each row."""

    examples: int
    layers: int
    k: int | None  # None: all weights


def plan(shapes: Sequence[Sequence[Shape]], budget: int) -> Plan:
    """Return the plan that keeps the most within `budget` bytes: first fewer weights, then layers, then examples."""
    examples, layers = len(shapes), max(map(len, shapes), default=0)
    while True:
        counts = Counter(shape for example in shapes[:examples] for shape in example[:layers])
        if _total(counts, None) <= budget:
            return Plan(examples, layers, None)
        candidates = range(LEAST_KEPT, max(shape.columns for shape in counts) + 1)
        fitting = bisect_right(candidates, budget, key=lambda k: _total(counts, k))  # the size grows with k
        if fitting or (layers <= 1 and examples <= 1):
            return Plan(examples, layers, candidates[fitting - 1] if fitting else LEAST_KEPT)
        if layers > 1:
            layers -= 1
        else:
            examples = max(1, math.floor(examples * 0.9))


def _total(counts: Counter[Shape], k: int | None) -> int:
    """Return the size of maps, given the number of maps of each shape."""
    return sum(count * shape.bytes(k) for shape, count in counts.items())


def shape_of(attention_map: AttentionMap) -> Shape:
    """Return the shape of a map."""
    shape = attention_map.shape
    if len(shape) != 3:
        raise InputError(f"layer {attention_map.layer!r}: weights of shape {shape}, not [heads, rows, columns]")
    return Shape(*shape)


class Packed(NamedTuple):
    """A packed map, and how much of the weight it holds."""

    value: dict[str, Any]
    coverage: float  # share of the weight that is stored, mean over heads and rows


def pack(attention_map: AttentionMap, k: int | None) -> Packed:
    """Return the weights, thumbnails and statistics of a map as JSON values."""
    weights = checked_weights(attention_map)
    shape = Shape(*weights.shape)
    if shape.columns > MAX_COLUMNS:
        raise InputError(f"layer {attention_map.layer!r}: {shape.columns} columns; a page shows at most {MAX_COLUMNS}")
    planes = [*weights, weights.mean(axis=0)] if shape.rows and shape.columns else []
    dense = k is None or shape.dense_bytes <= shape.sparse_bytes(k)
    coverage = 1.0
    if dense:
        stored: dict[str, Any] = {"encoding": "dense", "steps": _encode(_steps(weights))}
    else:
        assert k is not None
        columns, values = zip(*(_largest(plane, k) for plane in planes), strict=True)
        coverage = float(np.sum(values[:-1]) / max(float(weights.sum()), 1e-9))
        stored = {
            "encoding": "sparse",
            "k": k,
            "columns": _encode(np.stack(columns)),
            "steps": _encode(_steps(np.stack(values))),
        }
    value = {"heads": shape.heads, "weights": stored, "statistics": _statistics([head_statistics(p) for p in planes])}
    if shape.needs_overview:
        pooled = np.stack([_max_pooled(plane) for plane in planes])
        value["overview"] = {"height": pooled.shape[1], "width": pooled.shape[2], "values": _encode(_steps(pooled))}
    return Packed(value, coverage)


def pack_matrix(matrix: Float[np.ndarray, "rows columns"]) -> dict[str, Any]:
    """Return a matrix of numbers that are not weights, as little-endian float32."""
    return {"shape": [*matrix.shape], "values": _encode(np.asarray(matrix, dtype="<f4"))}


def pack_integers(values: Shaped[np.ndarray, "..."], dtype: str = "<u4") -> str:
    """Return integers as base64, by default of little-endian uint32."""
    return _encode(values.astype(dtype))


def pack_bytes(values: Shaped[np.ndarray, "..."], low: float, high: float) -> str:
    """Return numbers from `low` to `high` in 255 steps, as base64 of bytes."""
    return _encode(np.rint((values - low) / ((high - low) or 1.0) * 255).clip(0, 255).astype(np.uint8))


def _statistics(heads: Sequence[HeadStatistics]) -> dict[str, list[float | None]]:
    """Return each statistic as a list over heads, the average of the heads last."""
    return {
        name: [round(value, 5) if math.isfinite(value) else None for value in (getattr(head, name) for head in heads)]
        for name in HeadStatistics._fields
    }


def _largest(plane: Float[np.ndarray, "rows columns"], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns and weights of the k largest weights of each row, largest first."""
    chosen = (
        np.argpartition(plane, plane.shape[1] - k, axis=1)[:, -k:] if k < plane.shape[1] else np.argsort(plane, axis=1)
    )
    values = np.take_along_axis(plane, chosen, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(chosen, order, axis=1).astype("<u2"), np.take_along_axis(values, order, axis=1)


def _max_pooled(plane: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "height width"]:
    """Return the largest weights of at most OVERVIEW x OVERVIEW blocks."""
    pooled = plane
    for axis, size in enumerate(plane.shape):
        if size > OVERVIEW:
            pooled = np.maximum.reduceat(pooled, np.arange(OVERVIEW) * size // OVERVIEW, axis=axis)
    return pooled


def _steps(weights: np.ndarray) -> np.ndarray:
    steps: np.ndarray = np.rint(weights * np.float32(STEPS)).astype("<u2")
    return steps


def _encode(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _base64_size(size: int) -> int:
    return 4 * math.ceil(size / 3)
