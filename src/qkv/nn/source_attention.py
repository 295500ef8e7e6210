"""Attention of a decoder over the encoded source, with optional coverage."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from qkv.attention import Align, Attend, Keys, Padding, Score
from qkv.attention.precision import upcast_dtype
from qkv.nn.multi_head import BackendName
from qkv.types import Float, Int, Tensor


@dataclass(frozen=True)
class EncodedSource:
    """Keys and values of the source, computed once per sentence."""

    values: Float[Tensor, "batch 1 source features"]  # h_i
    keys: Float[Tensor, "batch 1 source key_features"]  # U h_i, as the score projects them
    lengths: Int[Tensor, "batch"] | None
    coverage: Float[Tensor, "batch source"] | None = None  # sum of the weights so far, of `CoverageAttention`


class SourceAttention(nn.Module):
    """c = sum_i a_i h_i,   a_i = align_i(score(query, h_i))."""

    def __init__(self, score: Score, align: Align, backend: BackendName = "auto") -> None:
        super().__init__()
        self.attend = Attend(score, align, backend=backend, heads=1)

    def precompute(
        self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None
    ) -> EncodedSource:
        """Return the keys and values of the encoder states."""
        return EncodedSource(values[:, None], self.attend.keys(values[:, None]).tensor, lengths)

    def forward(
        self, query: Float[Tensor, "batch query hidden"], source: EncodedSource, step: Int[Tensor, "*batch"]
    ) -> tuple[Float[Tensor, "batch query features"], EncodedSource]:
        """Return c of each query, the first of them at time `step`, and the source for the next step."""
        mask = None if source.lengths is None else Padding(source.lengths)
        context = self.attend(query[:, None], Keys(source.keys), source.values, mask, start=step).output
        return context.squeeze(1), source


class CoverageAttention(SourceAttention):
    """Keys depend on the attention that each h_i has received so far: k_ti = U h_i + w sum_{u<t} a_ui.

    Under the additive score this is v . tanh(W s + U h_i + w cov_ti) (See, Liu and Manning 2017).
    """

    def __init__(self, score: Score, align: Align, features: int, backend: BackendName = "auto") -> None:
        super().__init__(score, align, backend)
        keys = self.attend.keys(torch.zeros(1, 1, 1, features)).tensor
        self.coverage_weight = nn.Parameter(torch.empty(keys.shape[-1]).uniform_(-0.1, 0.1))  # w

    def precompute(
        self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None
    ) -> EncodedSource:
        source = super().precompute(values, lengths)
        batch, longest, _ = values.shape
        coverage = source.keys.new_zeros(batch, longest, dtype=upcast_dtype(source.keys.dtype))  # a sum over all steps
        return replace(source, values=append_one_hot(source.values), coverage=coverage)

    def forward(
        self, query: Float[Tensor, "batch query hidden"], source: EncodedSource, step: Int[Tensor, "*batch"]
    ) -> tuple[Float[Tensor, "batch query features"], EncodedSource]:
        keys, coverage = source.keys, source.coverage
        assert coverage is not None
        covered = keys + coverage[:, None, :, None].to(keys.dtype) * self.coverage_weight.to(keys.dtype)
        output, _ = super().forward(query, replace(source, keys=covered), step)
        context, weights = output.split((output.shape[-1] - coverage.shape[-1], coverage.shape[-1]), dim=-1)
        return context, replace(source, coverage=coverage + weights.squeeze(1))


def append_one_hot(values: Float[Tensor, "batch 1 source features"]) -> Float[Tensor, "batch 1 source wider"]:
    """Append a one-hot vector of its position to each value, so that any kernel also returns the weights."""
    positions = torch.eye(values.shape[2], dtype=values.dtype, device=values.device)
    return torch.cat((values, positions.expand(len(values), 1, -1, -1)), dim=-1)


def step_numbers(first: Int[Tensor, "*batch"], steps: int) -> tuple[Int[Tensor, "*batch"], ...]:
    """Return the indices of `steps` steps from `first` on."""
    return (first[..., None] + torch.arange(steps, device=first.device)).unbind(-1)
