"""Coverage penalty of beam search (Wu et al. 2016).

penalty = beta * sum_i log min(sum_t a_ti, 1)        a_ti: the weight of source token i at step t

It is 0 if every source token was attended to with a total weight of 1 or more, and negative otherwise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from qkv.attention import watch
from qkv.attention.watch import AttentionRecord
from qkv.types import Float, Int, Tensor

MIN_COVERAGE = 1e-6  # hard and local attention can give a token weight 0; avoids log 0


@dataclass(frozen=True)
class Coverage:
    """Settings of the coverage penalty."""

    beta: float
    layer: str  # whose weights count, averaged over heads
    lengths: Int[Tensor, "batch"]  # source lengths: padding is ignored

    def penalty(self, coverage: Float[Tensor, "rows source"], row_ids: Int[Tensor, "rows"]) -> Float[Tensor, "rows"]:
        """Return the penalty of hypotheses, given the total weight on each token of their sources."""
        padding = torch.arange(coverage.shape[-1], device=coverage.device) >= self.lengths[row_ids][:, None]
        return self.beta * coverage.clamp(MIN_COVERAGE, 1.0).masked_fill(padding, 1.0).log().sum(dim=-1)


@contextmanager
def track_coverage(model: nn.Module, coverage: Coverage | None) -> Iterator["CoverageTracker | NoCoverage"]:
    """Record attention weights during a search; without `coverage`, the penalty is always 0."""
    if coverage is None:
        yield NoCoverage()
        return
    with watch(model, layers=[coverage.layer]) as records:
        yield CoverageTracker(coverage, records[coverage.layer])


class CoverageTracker:
    """Accumulates the attention weights of each hypothesis of a search."""

    def __init__(self, coverage: Coverage, record: AttentionRecord) -> None:
        self._settings = coverage
        self._record = record
        self._coverage: Tensor | None = None  # [rows, source]; None before the first step

    def step(self, row_ids: Int[Tensor, "rows"]) -> Float[Tensor, "rows"]:
        """Add the weights of the latest step, and return the penalty of each hypothesis if it ended now."""
        weights = self._record.weights[:, :, 0].float().mean(dim=1)
        self._record.reset()
        self._coverage = weights if self._coverage is None else self._coverage + weights
        return self._settings.penalty(self._coverage, row_ids)

    def reorder(self, parents: Int[Tensor, "beams"]) -> None:
        """Select the rows that the next hypotheses extend."""
        assert self._coverage is not None
        self._coverage = self._coverage[parents]


class NoCoverage:
    """Replaces `CoverageTracker` in a search without a coverage penalty."""

    def step(self, row_ids: Int[Tensor, "rows"]) -> Float[Tensor, "rows"]:
        return torch.zeros(row_ids.shape, device=row_ids.device)

    def reorder(self, parents: Int[Tensor, "beams"]) -> None:
        pass
