"""Sampling from the model's distribution, with temperature, top-k and top-p.

p_i ~ exp(z_i / T)       T: softmax temperature
top-k                    the k most likely tokens (Fan et al. 2018)
top-p                    the smallest set of most likely tokens with total probability p (Holtzman et al. 2020)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qkv.config import require
from qkv.generation.back_pointers import Hypothesis
from qkv.generation.constraints import DecodingConstraints
from qkv.generation.search import State, StepModel, decode
from qkv.types import Float, Int, Tensor

MIN_TEMPERATURE = 1e-300  # already greedy; avoids overflow of 1 / T


@dataclass(frozen=True)
class Sampling:
    """Sampling settings, applied in the order temperature, top-k, top-p."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 < self.temperature < float("inf"), f"temperature must be positive, not {self.temperature}")
        require(self.top_k is None or 1 <= self.top_k <= 2**30, f"top-k must lie between 1 and 2^30, not {self.top_k}")
        require(self.top_p is None or 0 < self.top_p <= 1, f"top-p must be above 0 and at most 1, not {self.top_p}")
        require(0 <= self.seed < 2**64, f"seed must lie between 0 and 2^64, not {self.seed}")

    def filter_probs(self, log_p: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
        """Return the probabilities to sample from; filtered tokens have exactly 0. They need not sum to 1."""
        z = log_p.double()
        z = z - z.amax(dim=-1, keepdim=True)  # the maximum stays 0 at any temperature
        p = (z / max(self.temperature, MIN_TEMPERATURE)).softmax(dim=-1)
        if self.top_k is not None and self.top_k < p.shape[-1]:
            values, indices = p.topk(self.top_k)
            p = torch.zeros_like(p).scatter(1, indices, values / values.sum(dim=-1, keepdim=True))
        if self.top_p is not None:
            values, indices = p.sort(dim=-1, descending=True, stable=True)
            before = values.cumsum(dim=-1) - values  # keep a token if those before it have less than top_p
            p = torch.zeros_like(p).scatter(1, indices, values.masked_fill(before >= self.top_p, 0.0))
        return p


DEFAULT_SAMPLING = Sampling()


def sample(
    model: StepModel[State],
    state: State,
    constraints: DecodingConstraints,
    sampling: Sampling = DEFAULT_SAMPLING,
    *,
    samples: int = 1,
    length_penalty: float = 1.0,
    row_ids: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """Sample `samples` hypotheses for each row of the state, in sampling order.

    Scores are the model's own log-probabilities, without temperature. The random numbers of a sample depend on the
    seed, the id of its row (its index in the batch, unless `row_ids` are given) and the index of the sample only, not
    on the rest of the batch.
    """
    require(samples >= 1, f"samples must be at least 1, not {samples}")
    row_ids = range(constraints.batch) if row_ids is None else row_ids
    require(len(row_ids) == constraints.batch, f"{len(row_ids)} row_ids for a batch of {constraints.batch} row(s)")
    steps = max(constraints.per_row("max_length")) + 1
    uniform = _uniform(sampling.seed, row_ids, samples, steps).to(model.device)

    def choose(log_p: Float[Tensor, "rows vocabulary"], step: int, rows: Int[Tensor, "rows"]) -> Int[Tensor, "rows"]:
        return sample_from(sampling.filter_probs(log_p), uniform[rows, step])

    hypotheses = decode(model, state, constraints, choose, length_penalty=length_penalty, copies=samples)
    return [hypotheses[row : row + samples] for row in range(0, len(hypotheses), samples)]


def sample_from(p: Float[Tensor, "rows vocabulary"], uniform: Float[Tensor, "rows"]) -> Int[Tensor, "rows"]:
    """Sample a token per row by inverting the cumulative distribution at `uniform` in [0, 1); p need not sum to 1."""
    cumulative = p.cumsum(dim=-1)
    # Rounding must not make the threshold equal to the total, which lies beyond every token.
    total = cumulative[:, -1]
    threshold = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(uniform)))
    return torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0].clamp(max=p.shape[-1] - 1)


def _uniform(seed: int, row_ids: Sequence[int], samples: int, steps: int) -> Float[Tensor, "rows steps"]:
    """Return uniform random numbers in [0, 1) for each step of each sample."""
    streams = [(seed, row_id, sample) for row_id in row_ids for sample in range(samples)]
    return torch.from_numpy(np.stack([np.random.default_rng(stream).random(steps) for stream in streams]))
