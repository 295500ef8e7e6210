"""Attention of a recurrent decoder over the encoded source, with optional coverage."""

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


def build_alignment(
    name: str, query_dim: int, window: int, estimator: str, baseline: str, entropy: float, discount: float
) -> Align:
    """Build the alignment function by name; arguments that it does not take are ignored."""
    if name == "hard":
        baseline_name = None if baseline == "none" else baseline
        return Hard(estimator, baseline=baseline_name, query_dim=query_dim, entropy=entropy, discount=discount)
    if name == "local_m":
        return LocalMonotonic(window)
    if name == "local_p":
        return LocalPredictive(query_dim, window)
    return {"soft": Softmax, "sparsemax": Sparsemax, "entmax": Entmax}[name]()


@dataclass(frozen=True)
class EncodedSource:
    """Keys and values of the source, computed once per sentence."""

    values: Float[Tensor, "batch 1 source features"]  # h_i
    keys: Float[Tensor, "batch 1 source key_features"]  # U h_i, as the score projects them
    lengths: Int[Tensor, "batch"] | None


class SourceAttention(nn.Module):
    """c_t = attend(query, h). With coverage, the keys depend on the attention each h_i has received so far:

        k_ti = U h_i + w sum_{u<t} a_ui

    which under the additive score is v . tanh(W s + U h_i + w cov_ti) (See, Liu and Manning 2017).
    """

    def __init__(self, score: Score, align: Align, features: int, *, coverage: bool = False) -> None:
        super().__init__()
        self.attend = Attend(score, align, heads=1)
        self.coverage_weight = None  # w
        if coverage:
            keys = self.attend.keys(torch.zeros(1, 1, 1, features)).tensor
            self.coverage_weight = nn.Parameter(torch.empty(keys.shape[-1]).uniform_(-0.1, 0.1))

    def precompute(
        self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None
    ) -> EncodedSource:
        """Return the keys and values of the encoder states."""
        keys = self.attend.keys(values[:, None]).tensor
        if self.coverage_weight is not None:
            # Append one-hot positions to the values, so that any kernel also returns the weights.
            batch, longest, _ = values.shape
            positions = torch.eye(longest, dtype=values.dtype, device=values.device)
            values = torch.cat((values, positions.expand(batch, -1, -1)), dim=-1)
        return EncodedSource(values[:, None], keys, lengths)

    def init_coverage(self, source: EncodedSource) -> Float[Tensor, "batch source"] | None:
        """Return zero coverage, or None without coverage."""
        if self.coverage_weight is None:
            return None
        batch, _, longest, _ = source.keys.shape
        return source.keys.new_zeros(batch, longest, dtype=upcast_dtype(source.keys.dtype))  # a sum over all steps

    def forward(
        self,
        query: Float[Tensor, "batch query hidden"],
        source: EncodedSource,
        step: Int[Tensor, ""],
        coverage: Float[Tensor, "batch source"] | None,
    ) -> tuple[Float[Tensor, "batch query features"], Float[Tensor, "batch source"] | None]:
        """Return c_t for each query, the first of them at time `step`, and the updated coverage."""
        keys = source.keys
        if self.coverage_weight is not None and coverage is not None:
            keys = keys + coverage[:, None, :, None].to(keys.dtype) * self.coverage_weight.to(keys.dtype)
        mask = None if source.lengths is None else Padding(source.lengths)
        output = self.attend(query[:, None], Keys(keys), source.values, mask, start=step).output.squeeze(1)
        if coverage is None:
            return output, None
        context, weights = output.split((output.shape[-1] - coverage.shape[-1], coverage.shape[-1]), dim=-1)
        return context, coverage + weights.squeeze(1)
