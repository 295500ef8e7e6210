"""Which cells of attention maps are masked, in a compact form."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Bool

from qkv.interpret.attention_probe import TextAnswer
from qkv.pipelines.output import Answer, AttentionMap
from qkv.visualize.explorer.packing import pack_integers

MAX_CELLS = 2**20  # of a mask with gaps in its rows, which takes one bit per cell
LEAST_ROWS = 3  # of a layer whose causal mask is recognized by its weights


def mask_part(answer: Answer, maps: Iterable[AttentionMap]) -> tuple[list[dict[str, Any]], list[int | None]]:
    """Return the distinct masks of the maps, and the index of each map's mask.

    The index is None if no cell is masked, if the mask is not known, or if it has too many cells to be stored.
    """
    masks: dict[tuple[tuple[int, ...], bytes], dict[str, Any]] = {}
    indices: list[int | None] = []
    for each in maps:
        allowed = _allowed(answer, each)
        packed = None if allowed is None or allowed.all() else _pack(allowed)
        if allowed is None or packed is None:
            indices.append(None)
            continue
        key = (allowed.shape, np.packbits(allowed).tobytes())
        masks.setdefault(key, packed)
        indices.append([*masks].index(key))
    return [*masks.values()], indices


def _allowed(answer: Answer, each: AttentionMap) -> Bool[np.ndarray, "queries keys"] | None:
    """Return which keys each query may attend to: as recorded, or of a causal layer; None if it is not known."""
    recorded = answer.masks.get(each.layer) if isinstance(answer, TextAnswer) else None
    if recorded is not None and recorded.shape == each.shape[1:]:
        return recorded
    decodes = isinstance(answer, TextAnswer) and bool(answer.next_tokens)
    if not (decodes or each.layer.endswith(".self")):
        return None
    _, rows, columns = each.shape
    largest = np.max(np.asarray(each.weights), axis=0) if rows == columns >= LEAST_ROWS else None
    if largest is None or np.triu(largest, 1).any() or (np.tril(largest) > 0).sum() <= rows:
        return None
    return np.tri(rows, dtype=bool)


def _pack(allowed: Bool[np.ndarray, "queries keys"]) -> dict[str, Any] | None:
    """Return the first allowed key of each query and the one after the last, or one bit per cell if there are gaps."""
    count = allowed.sum(axis=1)
    first = np.where(count > 0, allowed.argmax(axis=1), 0)
    last = np.where(count > 0, allowed.shape[1] - allowed[:, ::-1].argmax(axis=1), 0)
    if (last - first == count).all():
        return {"encoding": "runs", "values": pack_integers(np.stack([first, last], axis=1))}
    if allowed.size > MAX_CELLS:
        return None
    return {"encoding": "bits", "values": pack_integers(np.packbits(allowed), "u1")}
