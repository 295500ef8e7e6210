"""Attention of a decoder over the encoded source, with optional coverage; its weights can be kept for copying."""

from dataclasses import dataclass, replace
from typing import Any

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
    tokens: Int[Tensor, "batch source"] | None = None  # x_i, of a model that copies them
    weights: tuple[Float[Tensor, "batch query source"], ...] = ()  # of the calls so far, with `keep_weights`


class SourceAttention(nn.Module):
    """c = sum_i a_i h_i,   a_i = align_i(score(query, h_i))."""

    def __init__(
        self, score: Score, align: Align, backend: BackendName = "auto", *, keep_weights: bool = False
    ) -> None:
        super().__init__()
        self.attend = Attend(score, align, backend=backend, heads=1)
        self.keep_weights = keep_weights

    def precompute(
        self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None
    ) -> EncodedSource:
        """Return the keys and values of the encoder states."""
        source = EncodedSource(values[:, None], self.attend.keys(values[:, None]).tensor, lengths)
        return replace(source, values=append_one_hot(source.values)) if self.keep_weights else source

    def forward(
        self, query: Float[Tensor, "batch query hidden"], source: EncodedSource, step: Int[Tensor, "*batch"]
    ) -> tuple[Float[Tensor, "batch query features"], EncodedSource]:
        """Return c of each query, the first of them at time `step`, and the source for the next step.

        Local attention depends on the step; the new source has the new coverage, and the weights if they are kept.
        """
        mask = None if source.lengths is None else Padding(source.lengths)
        output = self.attend(query[:, None], Keys(source.keys), source.values, mask, start=step).output.squeeze(1)
        if not self.keep_weights:
            return output, source
        longest = source.values.shape[2]
        context, weights = output.split((output.shape[-1] - longest, longest), dim=-1)
        return context, replace(source, weights=(*source.weights, weights))


class CoverageAttention(SourceAttention):
    """Keys depend on the attention that each h_i has received so far: k_ti = U h_i + w sum_{u<t} a_ui.

    Under the additive score this is v . tanh(W s + U h_i + w cov_ti) (See, Liu and Manning 2017).
    """

    def __init__(
        self, score: Score, align: Align, features: int, backend: BackendName = "auto", *, keep_weights: bool = False
    ) -> None:
        super().__init__(score, align, backend, keep_weights=True)
        self.copies = keep_weights  # whether the weights are needed after the coverage is computed
        keys = self.attend.keys(torch.zeros(1, 1, 1, features)).tensor
        self.coverage_weight = nn.Parameter(torch.empty(keys.shape[-1]).uniform_(-0.1, 0.1))  # w

    def precompute(
        self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None
    ) -> EncodedSource:
        source = super().precompute(values, lengths)
        batch, longest, _ = values.shape
        coverage = source.keys.new_zeros(batch, longest, dtype=upcast_dtype(source.keys.dtype))  # a sum over all steps
        return replace(source, coverage=coverage)

    def forward(
        self, query: Float[Tensor, "batch query hidden"], source: EncodedSource, step: Int[Tensor, "*batch"]
    ) -> tuple[Float[Tensor, "batch query features"], EncodedSource]:
        keys, coverage = source.keys, source.coverage
        assert coverage is not None
        covered = keys + coverage[:, None, :, None].to(keys.dtype) * self.coverage_weight.to(keys.dtype)
        context, attended = super().forward(query, replace(source, keys=covered), step)
        coverage = coverage + attended.weights[-1].squeeze(1)
        return context, replace(source, coverage=coverage, weights=attended.weights if self.copies else ())


def build_source_attention(config: Any, features: int) -> SourceAttention:
    """Return the attention of a recurrent decoder over encoder states of a size, with coverage if it is configured."""
    align, score = config.align.build(config.attention_sizes), config.score.build(config.attention_sizes)
    if config.coverage:
        return CoverageAttention(score, align, features, config.backend, keep_weights=config.copying)
    return SourceAttention(score, align, config.backend, keep_weights=config.copying)


def append_one_hot(values: Float[Tensor, "batch 1 source features"]) -> Float[Tensor, "batch 1 source wider"]:
    """Append a one-hot vector of its position to each value, so that any kernel also returns the weights."""
    positions = torch.eye(values.shape[2], dtype=values.dtype, device=values.device)
    return torch.cat((values, positions.expand(len(values), 1, -1, -1)), dim=-1)


def step_numbers(first: Int[Tensor, "*batch"], steps: int) -> tuple[Int[Tensor, "*batch"], ...]:
    """Return the indices of `steps` steps from `first` on."""
    return (first[..., None] + torch.arange(steps, device=first.device)).unbind(-1)
