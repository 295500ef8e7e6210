"""A memory of so many locations, and the heads that read and write it (Graves, Wayne and Danihelka 2014, section 3).

    r   = sum_i w(i) M(i)                             a head reads where it looks
    M'(i) = M(i) prod_h (1 - w_h(i) e_h) + sum_h w_h(i) a_h        and another erases, and then adds

Where a head looks, w, is attention with the locations as keys: by content alone, w = softmax(b cos(k, M(i))), or with
all of `Addressing`, which may stay at the place of the step before, or move on from there.
"""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Addressing, Attend, Cosine
from qkv.types import Float, Tensor

BLANK = 1e-6  # what stands in a memory that nothing was written to (Collier and Beel 2018)
_FOCUS = 10.0  # in the logits of the first weights: a head begins at its first location

Memory = Float[Tensor, "batch locations width"]
Weights = Float[Tensor, "batch heads locations"]
Places = Float[Tensor, "batch locations locations"]


class Heads(nn.Module):
    """Several heads that look for a place, each by what the controller says to it in `size` numbers.

    With a reach of None a head finds its place by content alone; with r, it may also keep that of the step before, and
    move from there by up to r locations in each direction.
    """

    def __init__(self, heads: int, locations: int, width: int, reach: int | None) -> None:
        super().__init__()
        self.heads, self.locations, self.width, self.reach = heads, locations, width, reach
        # Their strength b comes with each step: the score has none of its own to learn.
        self.attend = Attend(Cosine(heads=heads).requires_grad_(False), heads=heads)
        self.first = None if reach is None else nn.Parameter(torch.zeros(heads, locations))  # the logits of w_0
        if self.first is not None:
            with torch.no_grad():
                self.first[:, 0] = _FOCUS

    @property
    def parts(self) -> tuple[int, ...]:
        """How many numbers say what: the key k, its strength b; and the gate g, the sharpening, and the shift."""
        return (self.width, 1) if self.reach is None else (self.width, 1, 1, 1, 2 * self.reach + 1)

    @property
    def size(self) -> int:
        """How many numbers the controller says to all heads together."""
        return self.heads * sum(self.parts)

    def begin(self, batch: int, like: Tensor) -> Weights:
        """w_0."""
        if self.first is None:
            return like.new_full((batch, self.heads, self.locations), 1 / self.locations)
        return self.first.softmax(dim=-1).expand(batch, -1, -1)

    def look(
        self,
        said: Float[Tensor, "batch size"],
        memory: Memory,
        values: Float[Tensor, "batch locations value"],
        before: Weights,
    ) -> Float[Tensor, "batch heads value"]:
        """What each head finds of the values, at the place in memory that it is told to look for."""
        key, strength, *move = said.unflatten(1, (self.heads, 1, -1)).split(self.parts, dim=-1)
        if self.reach is None:  # it looks where the content was found, and nowhere else
            gate = sharpening = torch.ones_like(strength[..., 0])
            shift = torch.ones_like(strength)
        else:
            gate, sharpening = move[0][..., 0].sigmoid(), 1 + F.softplus(move[1][..., 0])
            shift = move[2].softmax(dim=-1)
        align = Addressing(before[:, :, None], gate, shift, sharpening, F.softplus(strength[..., 0]))
        return self.attend(key.tanh(), memory[:, None], values[:, None], align=align).output[:, :, 0]


class ReadHeads(Heads):
    """r = sum_i w(i) M(i)."""

    def forward(
        self, said: Float[Tensor, "batch size"], memory: Memory, before: Weights, places: Places
    ) -> tuple[Float[Tensor, "batch heads width"], Weights]:
        """What was read, and the weights. Beside each location stands a one for its place (`places_of`): what is read
        then says from where, whatever has read it.
        """
        found = self.look(said, memory, torch.cat((memory, places), dim=-1), before)
        read, weights = found.split((self.width, self.locations), dim=-1)
        return read, weights


class WriteHeads(Heads):
    """M'(i) = M(i) prod_h (1 - w_h(i) e_h) + sum_h w_h(i) a_h."""

    @property
    def size(self) -> int:
        return super().size + self.heads * 2 * self.width  # e and a

    def forward(
        self, said: Float[Tensor, "batch size"], memory: Memory, before: Weights, places: Places
    ) -> tuple[Memory, Weights]:
        """The memory after it was written to, and the weights."""
        told, changes = said.split((super().size, self.heads * 2 * self.width), dim=-1)
        weights = self.look(told, memory, places, before)
        erase, add = changes.unflatten(1, (self.heads, 2 * self.width)).chunk(2, dim=-1)
        for at, gone in zip(weights.unbind(1), erase.sigmoid().unbind(1), strict=True):
            memory = memory * (1 - at[:, :, None] * gone[:, None])
        return torch.baddbmm(memory, weights.transpose(1, 2), add.tanh()), weights


def places_of(memory: Memory) -> Places:
    """A one for the place of each location."""
    batch, locations, _ = memory.shape
    return torch.eye(locations, dtype=memory.dtype, device=memory.device).expand(batch, -1, -1)
