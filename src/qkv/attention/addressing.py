"""How a neural Turing machine finds a place in its memory (Graves, Wayne and Danihelka 2014).

w_c = softmax(b s)                           by content: s is the score, b its strength
w_g = g w_c + (1 - g) w_previous             or by where it was before
w~(i) = sum_j w_g(j) shift(i - j)            moved, round and round
w(i) = w~(i)^gamma / sum_j w~(j)^gamma       and sharpened again after that blur
"""

from dataclasses import dataclass
from typing import final

import torch

from qkv.attention.align import Align, Scored
from qkv.attention.extent import Cells
from qkv.errors import ShapeError
from qkv.types import Float, Tensor


@final
@dataclass(frozen=True, eq=False)
class Addressing(Align):
    """Weights by content and by place, for one call: what the controller said, and the weights of the step before.

    The usual score is `Cosine`. It is for the controller to keep `gate` in [0, 1], `shift` a distribution,
    `sharpening` at least 1 and `strength` not negative. Weight that is moved onto a key which the mask forbids is
    lost, and sharpening shares it out among the others; where none is left at all, the weights are zero.
    """

    previous: Float[Tensor, "batch heads query key"]
    gate: Float[Tensor, "batch heads query"]  # g: 1 goes by content, 0 by where it was before
    shift: Float[Tensor, "batch heads query shifts"]  # how much moves by -r ... r places: 2 r + 1 numbers
    sharpening: Float[Tensor, "batch heads query"]  # gamma
    strength: Float[Tensor, "batch heads query"] | None = None  # b: 1 unless it is given

    def __post_init__(self) -> None:
        rows = self.gate.shape
        scalars = {"gate": self.gate, "sharpening": self.sharpening, "strength": self.strength}
        for name, values in scalars.items():
            if values is not None and (values.ndim != 3 or values.shape != rows):
                raise ShapeError(
                    f"Addressing takes one {name} for each [batch, heads, query], as many as gates: "
                    f"{name} has shape {list(values.shape)}, gate {list(rows)}"
                )
        if self.shift.ndim != 4 or self.shift.shape[:3] != rows or self.shift.shape[3] % 2 == 0:
            raise ShapeError(
                "Addressing takes shifts by -r ... r places, [batch, heads, query, 2 r + 1], "
                f"but shift has shape {list(self.shift.shape)} and gate {list(rows)}"
            )
        if self.previous.ndim != 4 or self.previous.shape[:3] != rows:
            raise ShapeError(
                "Addressing takes the weights of the step before, [batch, heads, query, key], "
                f"but previous has shape {list(self.previous.shape)} and gate {list(rows)}"
            )

    def weigh(self, scored: Scored) -> Float[Tensor, "batch heads query key"]:
        scores, allowed, _, extent = scored
        cells = Cells(extent)  # maybe not all heads and queries of the call are looked at
        previous, shift = cells.of_cell(self.previous), cells.of_cell(self.shift)
        gate, gamma = (cells.of_cell(each.unsqueeze(-1)) for each in (self.gate, self.sharpening))
        if previous.shape != scores.shape:
            raise ShapeError(
                f"Addressing holds weights of shape {list(previous.shape)} from the step before, but the scores are "
                f"{list(scores.shape)} [batch, heads, query, key]: the memory must keep its size"
            )
        if self.strength is not None:
            scores = scores * cells.of_cell(self.strength.unsqueeze(-1))
            if allowed is not None:  # whatever the strength, 0 too: what is forbidden stays at the bottom
                scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        content = scores.softmax(dim=-1)  # w_c
        gated = gate * content + (1.0 - gate) * previous  # w_g
        moved = _moved(gated, shift)  # w~
        return _sharpened(moved if allowed is None else moved.masked_fill(~allowed, 0.0), gamma)


def _moved(
    weights: Float[Tensor, "batch heads query key"], shift: Float[Tensor, "batch heads query shifts"]
) -> Float[Tensor, "batch heads query key"]:
    """Circular convolution: as many terms as there are shifts, which are few."""
    reach = shift.shape[-1] // 2
    moved = shift[..., reach].unsqueeze(-1) * weights
    for offset in (*range(-reach, 0), *range(1, reach + 1)):
        moved = torch.addcmul(moved, shift[..., reach + offset].unsqueeze(-1), weights.roll(offset, dims=-1))
    return moved


def _sharpened(
    weights: Float[Tensor, "batch heads query key"], gamma: Float[Tensor, "batch heads query 1"]
) -> Float[Tensor, "batch heads query key"]:
    """w^gamma / sum w^gamma. The highest weight is made 1 before, which changes nothing: no power can then vanish."""
    powers = (weights / _or_one(weights.amax(dim=-1, keepdim=True)).detach()) ** gamma
    return powers / _or_one(powers.sum(dim=-1, keepdim=True))


def _or_one(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The number, or 1 in place of 0: what to divide by in a row of zeros."""
    return x.where(x > 0, 1.0)
