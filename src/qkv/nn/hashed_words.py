"""A vector of its own for each word, in the row of a table that a hash of its characters names.

v = E[(h xor h / 2^32) mod ROWS],   h = sum_i c_i p^i,   i = 1 ..           in 64 bits, whatever runs over

No vocabulary is needed; in exchange, now and then two words share a row (Weinberger et al. 2009).
"""

import torch
from torch import nn

from qkv.types import Float, Int, Tensor

ROWS = 2**16
PRIME = 1099511628211  # p, that of the FNV hash


class HashedWords(nn.Module):
    """v, of words of so many characters."""

    powers: Tensor

    def __init__(self, characters: int, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, features)  # E
        nn.init.normal_(self.table.weight, std=0.1)
        powers = torch.full((characters,), PRIME).cumprod(0)
        self.register_buffer("powers", powers, persistent=False)

    def forward(self, characters: Int[Tensor, "*words characters"]) -> Float[Tensor, "*words features"]:
        found = (characters * self.powers).sum(dim=-1)
        return self.table((found ^ (found >> 32)) % ROWS)
