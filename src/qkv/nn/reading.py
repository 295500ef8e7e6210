"""A source that a decoder reads step by step: its keys made once, and how much was read of each place."""

from dataclasses import dataclass

import torch
from torch import nn

from qkv.attention import (
    Align,
    Attend,
    Entmax,
    Hard,
    Keys,
    LocalMonotonic,
    LocalPredictive,
    Padding,
    Score,
    Softmax,
    Sparsemax,
)
from qkv.attention.precision import upcast_dtype
from qkv.types import Float, Int, Tensor

ALIGNMENTS = ("soft", "hard", "local_m", "local_p", "sparsemax", "entmax")


def alignment(
    name: str, query_dim: int, window: int, estimator: str, baseline: str, entropy: float, discount: float
) -> Align:
    """The alignment that a recipe names, for queries of so many features; the rest is for those that take it."""
    if name == "hard":
        known = None if baseline == "none" else baseline
        return Hard(estimator, baseline=known, query_dim=query_dim, entropy=entropy, discount=discount)
    if name == "local_m":
        return LocalMonotonic(window)
    if name == "local_p":
        return LocalPredictive(query_dim, window)
    return {"soft": Softmax, "sparsemax": Sparsemax, "entmax": Entmax}[name]()


@dataclass(frozen=True)
class Source:
    """What attention looks at."""

    values: Float[Tensor, "batch 1 source features"]  # h_i
    keys: Float[Tensor, "batch 1 source key_features"]  # U h_i, or what else the score makes of them, once a sentence
    lengths: Int[Tensor, "batch"] | None


class Reader(nn.Module):
    """c_t = attend(query, h), and with coverage, c_t = attend(query, h marked by how much was read of each h_i):

        k_ti = U h_i + w sum_{u<t} a_ui

    which under the additive score is v . tanh(W s + U h_i + w cov_ti) (See, Liu and Manning 2017).
    """

    def __init__(self, score: Score, align: Align, features: int, *, coverage: bool = False) -> None:
        super().__init__()
        self.attend = Attend(score, align, heads=1)
        self.mark = None  # w
        if coverage:
            keys = self.attend.keys(torch.zeros(1, 1, 1, features)).tensor
            self.mark = nn.Parameter(torch.empty(keys.shape[-1]).uniform_(-0.1, 0.1))

    def look(self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None) -> Source:
        """The encoder's states, ready to be read."""
        keys = self.attend.keys(values[:, None]).tensor
        if self.mark is not None:
            # Beside each h_i, a one for its place: what is read then says from where, whatever kernel has read it.
            batch, longest, _ = values.shape
            place = torch.eye(longest, dtype=values.dtype, device=values.device)
            values = torch.cat((values, place.expand(batch, -1, -1)), dim=-1)
        return Source(values[:, None], keys, lengths)

    def uncovered(self, source: Source) -> Float[Tensor, "batch source"] | None:
        """That nothing has been read yet; None where that does not matter."""
        if self.mark is None:
            return None
        batch, _, longest, _ = source.keys.shape
        return source.keys.new_zeros(batch, longest, dtype=upcast_dtype(source.keys.dtype))  # a sum over all steps

    def forward(
        self,
        query: Float[Tensor, "batch query hidden"],
        source: Source,
        step: Int[Tensor, ""],
        covered: Float[Tensor, "batch source"] | None,
    ) -> tuple[Float[Tensor, "batch query features"], Float[Tensor, "batch source"] | None]:
        """c_t for each query, the first of them at time `step`, and what has been covered after it."""
        keys = source.keys
        if self.mark is not None and covered is not None:
            keys = keys + covered[:, None, :, None].to(keys.dtype) * self.mark.to(keys.dtype)
        mask = None if source.lengths is None else Padding(source.lengths)
        read = self.attend(query[:, None], Keys(keys), source.values, mask, start=step).output.squeeze(1)
        if covered is None:
            return read, None
        context, weights = read.split((read.shape[-1] - covered.shape[-1], covered.shape[-1]), dim=-1)
        return context, covered + weights.squeeze(1)
