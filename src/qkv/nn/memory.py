"""External memory with read and write heads (Graves, Wayne and Danihelka 2014, section 3).

    r   = sum_i w(i) M(i)                                          a read head
    M'(i) = M(i) prod_h (1 - w_h(i) e_h) + sum_h w_h(i) a_h        write heads erase, then add

The weights w of a head are attention with the locations as keys: by content alone, w = softmax(b cos(k, M(i))), or with
the full `Addressing`, which can also interpolate with the previous weights and shift them.
"""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Addressing, Attend, Cosine
from qkv.types import Float, Tensor

BLANK = 1e-6  # initial content of the memory (Collier and Beel 2018)
_FOCUS = 10.0  # initial logit of the first location: heads start there

Memory = Float[Tensor, "batch locations width"]
Weights = Float[Tensor, "batch heads locations"]
OneHot = Float[Tensor, "batch locations locations"]


class Heads(nn.Module):
    """Attention heads over the memory, each controlled by parameters that the controller emits (`size` in total).

    With max_shift None, heads address by content alone; with r, they can also keep the previous weights and shift them
    by up to r locations in each direction.
    """

    def __init__(self, heads: int, locations: int, width: int, max_shift: int | None) -> None:
        super().__init__()
        self.heads, self.locations, self.width, self.max_shift = heads, locations, width, max_shift
        # The controller emits the strength b at each step, so the score's own scale is not learned.
        self.attend = Attend(Cosine(heads=heads).requires_grad_(False), heads=heads)
        self.initial_logits = None if max_shift is None else nn.Parameter(torch.zeros(heads, locations))  # of w_0
        if self.initial_logits is not None:
            with torch.no_grad():
                self.initial_logits[:, 0] = _FOCUS

    @property
    def parts(self) -> tuple[int, ...]:
        """Sizes of a head's parameters: key k, strength b; gate g, sharpening and shift."""
        return (self.width, 1) if self.max_shift is None else (self.width, 1, 1, 1, 2 * self.max_shift + 1)

    @property
    def size(self) -> int:
        """Number of parameters of all heads together."""
        return self.heads * sum(self.parts)

    def initial_weights(self, batch: int, like: Tensor) -> Weights:
        """Return w_0."""
        if self.initial_logits is None:
            return like.new_full((batch, self.heads, self.locations), 1 / self.locations)
        return self.initial_logits.softmax(dim=-1).expand(batch, -1, -1)

    def address(
        self,
        params: Float[Tensor, "batch size"],
        memory: Memory,
        values: Float[Tensor, "batch locations value"],
        previous: Weights,
    ) -> Float[Tensor, "batch heads value"]:
        """Return the attention output of each head over `values`, addressed by `params`."""
        key, strength, *location = params.unflatten(1, (self.heads, 1, -1)).split(self.parts, dim=-1)
        if self.max_shift is None:  # content addressing only
            gate = sharpening = torch.ones_like(strength[..., 0])
            shift = torch.ones_like(strength)
        else:
            gate, sharpening = location[0][..., 0].sigmoid(), 1 + F.softplus(location[1][..., 0])
            shift = location[2].softmax(dim=-1)
        align = Addressing(previous[:, :, None], gate, shift, sharpening, F.softplus(strength[..., 0]))
        return self.attend(key.tanh(), memory[:, None], values[:, None], align=align).output[:, :, 0]


class ReadHeads(Heads):
    """r = sum_i w(i) M(i)."""

    def forward(
        self, params: Float[Tensor, "batch size"], memory: Memory, previous: Weights, one_hot: OneHot
    ) -> tuple[Float[Tensor, "batch heads width"], Weights]:
        """Return the vectors read and the weights.

        `one_hot` (`one_hot_locations`) is appended to the memory, so that any kernel also returns the weights.
        """
        output = self.address(params, memory, torch.cat((memory, one_hot), dim=-1), previous)
        read, weights = output.split((self.width, self.locations), dim=-1)
        return read, weights


class WriteHeads(Heads):
    """M'(i) = M(i) prod_h (1 - w_h(i) e_h) + sum_h w_h(i) a_h."""

    @property
    def size(self) -> int:
        return super().size + self.heads * 2 * self.width  # e and a

    def forward(
        self, params: Float[Tensor, "batch size"], memory: Memory, previous: Weights, one_hot: OneHot
    ) -> tuple[Memory, Weights]:
        """Return the updated memory and the weights."""
        address_params, changes = params.split((super().size, self.heads * 2 * self.width), dim=-1)
        weights = self.address(address_params, memory, one_hot, previous)
        erase, add = changes.unflatten(1, (self.heads, 2 * self.width)).chunk(2, dim=-1)
        for weight, erased in zip(weights.unbind(1), erase.sigmoid().unbind(1), strict=True):
            memory = memory * (1 - weight[:, :, None] * erased[:, None])
        return torch.baddbmm(memory, weights.transpose(1, 2), add.tanh()), weights


def one_hot_locations(memory: Memory) -> OneHot:
    """Return the identity matrix over locations for each row."""
    batch, locations, _ = memory.shape
    return torch.eye(locations, dtype=memory.dtype, device=memory.device).expand(batch, -1, -1)
