"""Low-rank attention (Wang, Li, Khabsa, Fang and Ma 2020) over k projected keys and values instead of all n.

    head_i = attend(x W_Qi, E_i x W_Ki, F_i x W_Vi)             E_i and F_i: [k, n], a column for each position

There are n k scores instead of n^2, so time and memory are linear in the length. The attention weights are over the k
projections, each of which mixes all tokens, and not over tokens.
"""

import torch
from torch import nn

from qkv.attention import Cache, KeyValue, Mask, Position, Score, ScoreShape
from qkv.errors import InputError
from qkv.nn.multi_head import MultiHead
from qkv.types import Float, Tensor


class LengthProjection(nn.Module):
    """E: projects n positions to k, with one matrix for all heads or one per head.

    A shorter sequence uses the first columns of E, as if it were padded with zeros.

    Each row is initialised to the mean of n / k neighbouring positions (the pooling that the paper mentions as an
    alternative to E), scaled to unit norm. With a random initialisation, as in the paper's proof, every word would have
    to be learned separately at each position.
    """

    def __init__(self, max_length: int, rank: int, heads: int = 1) -> None:
        super().__init__()
        position = torch.arange(max_length)
        self.weight = nn.Parameter(torch.zeros(heads, rank, max_length))
        with torch.no_grad():
            self.weight[:, position * rank // max_length, position] = (rank / max_length) ** 0.5

    def forward(self, x: Float[Tensor, "batch heads length dim"]) -> Float[Tensor, "batch heads rank dim"]:
        max_length = self.weight.shape[2]
        if x.shape[2] > max_length:
            raise InputError(f"the input has {x.shape[2]} positions, but max_length is {max_length}: shorten the input")
        weight = self.weight[:, :, : x.shape[2]]
        if len(weight) == 1:
            return torch.einsum("kn,bhnd->bhkd", weight[0], x)  # one matrix product
        return torch.einsum("hkn,bhnd->bhkd", weight, x)


class LowRankMultiHead(MultiHead):
    """Multi-head attention over projected keys and values; E and F may be shared with each other and across layers.

    Masked keys and values are zeroed before the projection; afterwards there is nothing left to mask. So a mask must
    hide a key from all queries, as `Padding` does.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        keys: LengthProjection,
        values: LengthProjection,
        dropout: float = 0.0,
        *,
        score: Score | None = None,
    ) -> None:
        super().__init__(dim, heads, dropout, score=score)
        self.key_projection = keys  # E
        self.value_projection = values  # F

    def forward(
        self,
        x: Float[Tensor, "batch query dim"],
        mask: Mask | None = None,
        past: Cache | None = None,
        *,
        position: Position | None = None,
    ) -> tuple[Float[Tensor, "batch query dim"], Cache]:
        """Self-attention over x; also returns the projected keys and values."""
        if past is not None or position is not None:
            raise InputError(
                "low-rank attention supports neither a cache nor positions: projected keys have no position"
            )
        query, key, value = (self._split(part) for part in self.project(x).split(self._sizes, dim=-1))
        if mask is not None:
            allowed = mask.to_dense(ScoreShape(len(x), self.heads, x.shape[1], x.shape[1], x.device))
            if allowed.shape[2] != 1:
                raise InputError(
                    "low-rank attention needs a mask that hides a key from all queries (Padding), but "
                    f"{type(mask).__name__} hides it from some"
                )
            hidden = ~allowed.transpose(2, 3)  # b h k 1
            key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
        projected = KeyValue(self.attend.keys(self.key_projection(key)).tensor, self.value_projection(value))
        return self._attend_and_project(query, projected, None, None, 0), projected
