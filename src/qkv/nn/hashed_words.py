"""Hash embeddings of words: a hash of the characters selects the row of a table.

v = E[(h xor h / 2^32) mod ROWS],   h = sum_i c_i p^i,   i = 1 ..           in 64-bit arithmetic with overflow

This needs no vocabulary; some words share a row by collision (Weinberger et al. 2009).
"""

import torch
from torch import nn

from qkv.types import Float, Int, Tensor

ROWS = 2**16
PRIME = 1099511628211  # p, from the FNV hash


class HashedWords(nn.Module):
    """Hash embedding of words of `characters` character ids."""

    powers: Tensor

    def __init__(self, characters: int, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, features)  # E
        nn.init.normal_(self.table.weight, std=0.1)
        powers = torch.full((characters,), PRIME).cumprod(0)
        self.register_buffer("powers", powers, persistent=False)

    def forward(self, characters: Int[Tensor, "*words characters"]) -> Float[Tensor, "*words features"]:
        hashes = (characters * self.powers).sum(dim=-1)
        return self.table((hashes ^ (hashes >> 32)) % ROWS)
