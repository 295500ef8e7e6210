"""How much of its source a hypothesis has read, and a penalty for what it has left out (Wu et al. 2016).

penalty = beta * sum_i log min(sum_t a_ti, 1)        a_ti: the weight of source token i at step t

It is 0 where every source token was read once or more, and falls with each that was not.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from qkv.attention import watch
from qkv.attention.watch import AttentionRecord
from qkv.errors import InputError
from qkv.types import Float, Int, Tensor

LEAST = 1e-6  # hard and local attention can leave a token out altogether, and log 0 would outweigh everything


@dataclass(frozen=True)
class Coverage:
    """What a search has to know to rank by coverage."""

    beta: float
    layer: str  # whose weights count, the average of its heads
    lengths: Int[Tensor, "batch"]  # of the sources: padding needs no cover

    def __post_init__(self) -> None:
        if not 0 <= self.beta < float("inf"):
            raise InputError(f"a coverage penalty is a finite number, 0 or more, not {self.beta}")

    def penalty(self, covered: Float[Tensor, "rows source"], numbers: Int[Tensor, "rows"]) -> Float[Tensor, "rows"]:
        """The penalty of hypotheses for the numbered sources, by how much they have read of each place."""
        padding = torch.arange(covered.shape[-1], device=covered.device) >= self.lengths[numbers][:, None]
        return self.beta * covered.clamp(LEAST, 1.0).masked_fill(padding, 1.0).log().sum(dim=-1)


@contextmanager
def following(model: nn.Module, coverage: Coverage | None) -> Iterator["Reading | Unread"]:
    """Watch what a search reads, for as long as it runs; nothing where no coverage is asked for."""
    if coverage is None:
        yield Unread()
        return
    with watch(model, layers=[coverage.layer]) as seen:
        yield Reading(coverage, seen[coverage.layer])


class Reading:
    """How much of its source each hypothesis of a search has read so far."""

    def __init__(self, coverage: Coverage, record: AttentionRecord) -> None:
        self._coverage = coverage
        self._record = record
        self._covered: Tensor | None = None  # [rows, source]; None before the first step

    def step(self, numbers: Int[Tensor, "rows"]) -> Float[Tensor, "rows"]:
        """Count what the step just made has read, and give the penalty of each hypothesis if it ended now."""
        weights = self._record.weights[:, :, 0].float().mean(dim=1)
        self._record.reset()
        self._covered = weights if self._covered is None else self._covered + weights
        return self._coverage.penalty(self._covered, numbers)

    def go_on_from(self, rows: Int[Tensor, "further"]) -> None:
        """The hypotheses are now those that go on from these rows."""
        assert self._covered is not None
        self._covered = self._covered[rows]


class Unread:
    """In the place of `Reading` where coverage does not count."""

    def step(self, numbers: Int[Tensor, "rows"]) -> Float[Tensor, "rows"]:
        return torch.zeros(numbers.shape, device=numbers.device)

    def go_on_from(self, rows: Int[Tensor, "further"]) -> None:
        pass
