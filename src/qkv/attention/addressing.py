"""Memory addressing of neural Turing machines (Graves, Wayne and Danihelka 2014).

w_c = softmax(beta score)                    content addressing, with the strength beta
w_g = g w_c + (1 - g) w_previous             interpolation with the previous weights
w~(i) = sum_j w_g(j) shift(i - j)            circular shift
w(i) = w~(i)^gamma / sum_j w~(j)^gamma       sharpening
"""

from dataclasses import dataclass
from typing import final

import torch

from qkv.attention.align import Align, AlignInput
from qkv.attention.score_shape import CellIndex, Weights
from qkv.errors import ShapeError
from qkv.types import Float, Tensor


@final
@dataclass(frozen=True, eq=False)
class Addressing(Align):
    """Content- and location-based addressing of one call, from controller outputs and the previous weights.

    The usual score is `Cosine`. The controller must keep `gate` in [0, 1], `shift` a distribution, `sharpening` at
    least 1 and `strength` non-negative. Weight shifted onto a masked key is dropped, and sharpening renormalizes the
    rest; if nothing is left, the weights are zero.

    Args:
        previous: The previous weights, [batch, heads, query, key].
        gate: g [batch, heads, query], 1 for content and 0 for the previous weights.
        shift: Distribution over shifts by -r ... r positions, [batch, heads, query, 2 r + 1].
        sharpening: gamma, [batch, heads, query].
        strength: beta, [batch, heads, query]; by default 1.
    """

    previous: Weights
    gate: Float[Tensor, "batch heads query"]
    shift: Float[Tensor, "batch heads query shifts"]
    sharpening: Float[Tensor, "batch heads query"]
    strength: Float[Tensor, "batch heads query"] | None = None

    def __post_init__(self) -> None:
        rows = self.gate.shape
        for name, dims in (("gate", 3), ("sharpening", 3), ("strength", 3), ("shift", 4), ("previous", 4)):
            values = getattr(self, name)
            if values is None or (values.ndim == dims and values.shape[:3] == rows and self.shift.shape[-1] % 2 == 1):
                continue
            raise ShapeError(
                "Addressing takes gate, sharpening and strength [batch, heads, query], shift [batch, heads, query, "
                "2 r + 1], for shifts by -r ... r positions, and previous [batch, heads, query, key], but "
                f"{name} has shape {list(values.shape)}, gate {list(rows)} and shift {list(self.shift.shape)}"
            )

    def compute_weights(self, inputs: AlignInput) -> Weights:
        scores, allowed, _, shape = inputs
        index = CellIndex(shape)  # the request may cover a subset of heads and queries
        previous, shift = index.per_cell(self.previous), index.per_cell(self.shift)
        gate, gamma = (index.per_cell(values.unsqueeze(-1)) for values in (self.gate, self.sharpening))
        if previous.shape != scores.shape:
            raise ShapeError(
                f"the previous weights have shape {list(previous.shape)}, but the scores "
                f"{list(scores.shape)} [batch, heads, query, key]: the memory size must not change"
            )
        if self.strength is not None:
            scores = scores * index.per_cell(self.strength.unsqueeze(-1))
            if allowed is not None:  # keep masked scores at the minimum for any strength, also 0
                scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        content = scores.softmax(dim=-1)  # w_c
        gated = gate * content + (1.0 - gate) * previous  # w_g
        shifted = _shift(gated, shift)  # w~
        return _sharpen(shifted if allowed is None else shifted.masked_fill(~allowed, 0.0), gamma)


def _shift(weights: Weights, shift: Float[Tensor, "batch heads query shifts"]) -> Weights:
    """Circular convolution, one term per shift."""
    reach = shift.shape[-1] // 2
    shifted = shift[..., reach].unsqueeze(-1) * weights
    for offset in (*range(-reach, 0), *range(1, reach + 1)):
        shifted = torch.addcmul(shifted, shift[..., reach + offset].unsqueeze(-1), weights.roll(offset, dims=-1))
    return shifted


def _sharpen(weights: Weights, gamma: Float[Tensor, "batch heads query 1"]) -> Weights:
    """w^gamma / sum w^gamma, with the weights scaled to a maximum of 1 first, so that the powers do not underflow."""
    powers = (weights / _or_one(weights.amax(dim=-1, keepdim=True)).detach()) ** gamma
    return powers / _or_one(powers.sum(dim=-1, keepdim=True))


def _or_one(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Replace 0 by 1, as a safe divisor for rows of zeros."""
    return x.where(x > 0, 1.0)
