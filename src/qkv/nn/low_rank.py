"""Attention of low rank (Wang, Li, Khabsa, Fang and Ma 2020): k mixtures of keys and values are read, not all n.

    head_i = attend(x W_Qi, E_i x W_Ki, F_i x W_Vi)             E_i and F_i: k rows, a column for each of n places

There are n k scores in place of n^2, so that time and memory grow as the text does. What a query looks at is no token
any more: its weights are over k mixtures, each of which has something of every token.
"""

import torch
from torch import nn

from qkv.attention import Cache, KeyValue, Mask, Position, Score, ScoreShape
from qkv.errors import InputError
from qkv.nn.heads import MultiHead
from qkv.types import Float, Tensor


class Mixture(nn.Module):
    """E: makes k vectors of those at n places, for all heads alike, or for each by a matrix of its own.

    A shorter sequence is one that has zeros at the other places: it meets the first columns of E.

    Each row begins as the mean of n / k neighbours, the pooling that the paper names beside E, made as large as one of
    them is. From random numbers, as the paper's proof has them, a word would have to be learned anew at every place.
    """

    def __init__(self, places: int, rank: int, heads: int = 1) -> None:
        super().__init__()
        place = torch.arange(places)
        self.weight = nn.Parameter(torch.zeros(heads, rank, places))
        with torch.no_grad():
            self.weight[:, place * rank // places, place] = (rank / places) ** 0.5

    def forward(self, x: Float[Tensor, "batch heads place dim"]) -> Float[Tensor, "batch heads rank dim"]:
        known = self.weight.shape[2]
        if x.shape[2] > known:
            raise InputError(f"a mixture was learned of {known} places, but there are {x.shape[2]}: shorten the input")
        weight = self.weight[:, :, : x.shape[2]]
        if len(weight) == 1:
            return torch.einsum("kn,bhnd->bhkd", weight[0], x)  # one product of two matrices
        return torch.einsum("hkn,bhnd->bhkd", weight, x)


class LowRankMultiHead(MultiHead):
    """Multi-head attention over mixtures of the keys and of the values; E and F may be one, and that of other layers.

    What a mask hides must not be mixed in: such keys and values are zeros before they meet E and F, and then nothing is
    left to be masked. So a mask may hide a key from all queries, as `Padding` does, but not from some.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        keys: Mixture,
        values: Mixture,
        dropout: float = 0.0,
        *,
        score: Score | None = None,
    ) -> None:
        super().__init__(dim, heads, dropout, score=score)
        self.mix_keys = keys  # E
        self.mix_values = values  # F

    def forward(
        self,
        x: Float[Tensor, "batch query dim"],
        mask: Mask | None = None,
        past: Cache | None = None,
        *,
        position: Position | None = None,
    ) -> tuple[Float[Tensor, "batch query dim"], Cache]:
        """Self-attention over x; also gives the mixtures that were read."""
        if past is not None or position is not None:
            raise InputError("mixtures of keys have no places: no past can be read before them, and no distances")
        query, key, value = (self._split(part) for part in self.project(x).split(self._sizes, dim=-1))
        if mask is not None:
            allowed = mask.to_dense(ScoreShape(len(x), self.heads, x.shape[1], x.shape[1], x.device))
            if allowed.shape[2] != 1:
                raise InputError(
                    "every query reads the same mixtures: a mask can hide a key from all of them (Padding), and "
                    f"{type(mask).__name__} hides it from some"
                )
            hidden = ~allowed.transpose(2, 3)  # b h k 1
            key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
        mixtures = KeyValue(self.attend.keys(self.mix_keys(key)).tensor, self.mix_values(value))
        return self._read(query, mixtures, None, None, 0), mixtures
