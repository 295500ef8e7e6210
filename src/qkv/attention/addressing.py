"""Memory addressing of neural Turing machines (Graves, Wayne and Danihelka 2014).

w_c = softmax(b s)                           content addressing: s is the score, b its strength
w_g = g w_c + (1 - g) w_previous             interpolation with the previous weights
w~(i) = sum_j w_g(j) shift(i - j)            circular shift
w(i) = w~(i)^gamma / sum_j w~(j)^gamma       sharpening
"""

from dataclasses import dataclass
from typing import final

import torch

from qkv.attention.align import Align, AlignInput
from qkv.attention.score_shape import CellIndex
from qkv.errors import ShapeError
from qkv.types import Float, Tensor


@final
@dataclass(frozen=True, eq=False)
class Addressing(Align):
    """Content- and location-based addressing of one call, from controller outputs and the previous weights.

    The usual score is `Cosine`. The controller must keep `gate` in [0, 1], `shift` a distribution, `sharpening` at
    least 1 and `strength` non-negative. Weight shifted onto a masked key is dropped, and sharpening renormalizes the
    rest; if nothing is left, the weights are zero.
    """

    previous: Float[Tensor, "batch heads query key"]
    gate: Float[Tensor, "batch heads query"]  # g: 1 for content, 0 for the previous weights
    shift: Float[Tensor, "batch heads query shifts"]  # distribution over shifts by -r ... r positions: 2 r + 1 values
    sharpening: Float[Tensor, "batch heads query"]  # gamma
    strength: Float[Tensor, "batch heads query"] | None = None  # b, by default 1

    def __post_init__(self) -> None:
        rows = self.gate.shape
        scalars = {"gate": self.gate, "sharpening": self.sharpening, "strength": self.strength}
        for name, values in scalars.items():
            if values is not None and (values.ndim != 3 or values.shape != rows):
                raise ShapeError(
                    f"Addressing needs one {name} per [batch, heads, query], like the gate, "
                    f"but {name} has shape {list(values.shape)} and gate {list(rows)}"
                )
        if self.shift.ndim != 4 or self.shift.shape[:3] != rows or self.shift.shape[3] % 2 == 0:
            raise ShapeError(
                "Addressing needs shifts by -r ... r positions, [batch, heads, query, 2 r + 1], "
                f"but shift has shape {list(self.shift.shape)} and gate {list(rows)}"
            )
        if self.previous.ndim != 4 or self.previous.shape[:3] != rows:
            raise ShapeError(
                "Addressing needs the previous weights, [batch, heads, query, key], "
                f"but previous has shape {list(self.previous.shape)} and gate {list(rows)}"
            )

    def compute_weights(self, inputs: AlignInput) -> Float[Tensor, "batch heads query key"]:
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


def _shift(
    weights: Float[Tensor, "batch heads query key"], shift: Float[Tensor, "batch heads query shifts"]
) -> Float[Tensor, "batch heads query key"]:
    """Circular convolution, one term per shift."""
    reach = shift.shape[-1] // 2
    shifted = shift[..., reach].unsqueeze(-1) * weights
    for offset in (*range(-reach, 0), *range(1, reach + 1)):
        shifted = torch.addcmul(shifted, shift[..., reach + offset].unsqueeze(-1), weights.roll(offset, dims=-1))
    return shifted


def _sharpen(
    weights: Float[Tensor, "batch heads query key"], gamma: Float[Tensor, "batch heads query 1"]
) -> Float[Tensor, "batch heads query key"]:
    """w^gamma / sum w^gamma, with the weights scaled to a maximum of 1 first, so that the powers do not underflow."""
    powers = (weights / _or_one(weights.amax(dim=-1, keepdim=True)).detach()) ** gamma
    return powers / _or_one(powers.sum(dim=-1, keepdim=True))


def _or_one(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Replace 0 by 1, as a safe divisor for rows of zeros."""
    return x.where(x > 0, 1.0)
