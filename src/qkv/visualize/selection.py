"""Select and validate the layer and head to show."""

import numpy as np
from jaxtyping import Float

from qkv.errors import InputError
from qkv.pipelines.output import Answer, AttentionMap
from qkv.runtime.text import printable


def pick_map(answer: Answer, layer: str | None) -> AttentionMap:
    """Return the map of `layer`, by default the first."""
    if not answer.attention:
        raise InputError("no attention weights were recorded")
    if layer is None:
        return answer.attention[0]
    for attention_map in answer.attention:
        if attention_map.layer == layer:
            return attention_map
    names = ", ".join(attention_map.layer for attention_map in answer.attention)
    raise InputError(f"no attention recorded for layer {layer!r}; available: {names}")


def pick_head(attention_map: AttentionMap, head: int | None) -> Float[np.ndarray, "rows columns"]:
    """Return the weights of `head`, by default the average of all heads."""
    weights = checked_weights(attention_map)
    if head is None:
        average: np.ndarray = weights.mean(axis=0)
        return average
    if not 0 <= head < len(weights):
        valid = "only head 0" if len(weights) == 1 else f"heads 0 to {len(weights) - 1}"
        raise InputError(f"layer {attention_map.layer!r} has no head {head}; it has {valid}")
    head_weights: np.ndarray = weights[head]
    return head_weights


def checked_weights(attention_map: AttentionMap) -> Float[np.ndarray, "heads rows columns"]:
    """Return the weights clipped to [0, 1], after checking their shape and that they are finite."""
    weights = np.asarray(attention_map.weights, dtype=np.float32)
    expected = (len(attention_map.rows), len(attention_map.columns))
    if weights.ndim != 3 or weights.shape[1:] != expected or len(weights) == 0:
        raise InputError(
            f"layer {attention_map.layer!r}: weights of shape {weights.shape} do not match "
            f"{expected[0]} rows and {expected[1]} columns"
        )
    if not np.isfinite(weights).all():
        raise InputError(f"layer {attention_map.layer!r}: non-finite weights")
    return weights.clip(0.0, 1.0)


def caption(attention_map: AttentionMap, head: int | None) -> str:
    """Return a caption with the layer and, if there are several, the head."""
    heads, layer = len(attention_map.weights), printable(attention_map.layer)
    if heads == 1:
        return layer
    return f"{layer} · " + (f"average of {heads} heads" if head is None else f"head {head} of {heads}")
