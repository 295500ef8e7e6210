"""Which layer and which head to show, and whether they can be shown at all."""

import numpy as np
from jaxtyping import Float

from qkv.config import shown
from qkv.errors import InputError
from qkv.tasks.answer import Answer, AttentionMap


def pick_map(answer: Answer, layer: str | None) -> AttentionMap:
    """The named layer's map; without a name, the first: the one a person should see first."""
    if not answer.maps:
        raise InputError("this answer carries no attention to show")
    if layer is None:
        return answer.maps[0]
    for attention_map in answer.maps:
        if attention_map.layer == layer:
            return attention_map
    names = ", ".join(attention_map.layer for attention_map in answer.maps)
    raise InputError(f"no attention was recorded for layer {layer!r}; there is: {names}")


def pick_head(attention_map: AttentionMap, head: int | None) -> Float[np.ndarray, "rows columns"]:
    """The weights of one head; without a number, the average of all heads."""
    weights = sound_weights(attention_map)
    if head is None:
        average: np.ndarray = weights.mean(axis=0)
        return average
    if not 0 <= head < len(weights):
        valid = "only head 0" if len(weights) == 1 else f"heads 0 to {len(weights) - 1}"
        raise InputError(f"layer {attention_map.layer!r} has no head {head}; it has {valid}")
    chosen: np.ndarray = weights[head]
    return chosen


def sound_weights(attention_map: AttentionMap) -> Float[np.ndarray, "heads rows columns"]:
    """The weights, once they are known to match their tokens and to be finite; rounding beyond 0 and 1 is cut off."""
    weights = np.asarray(attention_map.weights, dtype=np.float32)
    expected = (len(attention_map.rows), len(attention_map.columns))
    if weights.ndim != 3 or weights.shape[1:] != expected or len(weights) == 0:
        raise InputError(
            f"layer {attention_map.layer!r}: weights of shape {weights.shape} do not fit "
            f"{expected[0]} rows and {expected[1]} columns"
        )
    if not np.isfinite(weights).all():
        raise InputError(f"layer {attention_map.layer!r}: some weights are not finite numbers")
    return weights.clip(0.0, 1.0)


def caption(attention_map: AttentionMap, head: int | None) -> str:
    """What is shown, in words: the layer, and the head where there is more than one."""
    heads, layer = len(attention_map.weights), shown(attention_map.layer)
    if heads == 1:
        return layer
    return f"{layer} · " + (f"average of {heads} heads" if head is None else f"head {head} of {heads}")
