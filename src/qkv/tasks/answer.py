"""What a task gives back: an answer, and what the model attended to while making it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class AttentionMap:
    """The attention of one layer: each row (what was written) over each column (what was read)."""

    layer: str  # the layer's name, such as "decoder" or "decoder.1.cross"
    rows: tuple[str, ...]  # one text for each query
    columns: tuple[str, ...]  # one text for each key
    weights: Float[np.ndarray, "heads rows columns"]


@dataclass(frozen=True)
class Answer:
    """One answer to one input, best first where several were asked for."""

    source: str
    text: str
    score: float  # log-probability, divided by length ** length_penalty
    maps: tuple[AttentionMap, ...] = ()  # the first one is the alignment that a person should see first
    unknown: tuple[str, ...] = ()  # characters of the source that the model never saw

    @property
    def alignment(self) -> Float[np.ndarray, "rows columns"] | None:
        """The first map with its heads averaged: how much each output token read each input token."""
        return self.maps[0].weights.mean(axis=0) if self.maps else None
