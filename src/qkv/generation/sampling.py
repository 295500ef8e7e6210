"""Sampling: the next token is drawn as often as the model, narrowed down as one likes, says it should be.

p_i ~ exp(z_i / T)       T: the temperature; below 1 it favours what is probable anyhow, above 1 what is not
top-k                    only the k most probable tokens (Fan et al. 2018)
top-p                    only the fewest, most probable tokens that together have probability p (Holtzman et al. 2020)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qkv.config import require
from qkv.generation.rules import Rules
from qkv.generation.search import Speaker, State, write
from qkv.generation.trail import Hypothesis
from qkv.types import Float, Int, Tensor

COLDEST = 1e-300  # nothing but the best has any probability left; for less, 1 / T is no number


@dataclass(frozen=True)
class Sampling:
    """How to draw: first the temperature, then the k best, then the fewest with a share of p of what is left."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 < self.temperature < float("inf"), f"temperature must be positive, not {self.temperature}")
        require(self.top_k is None or 1 <= self.top_k <= 2**30, f"top-k must lie between 1 and 2^30, not {self.top_k}")
        require(self.top_p is None or 0 < self.top_p <= 1, f"top-p must be above 0 and at most 1, not {self.top_p}")
        require(0 <= self.seed < 2**64, f"seed must lie between 0 and 2^64, not {self.seed}")

    def narrowed(self, log_p: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
        """The probabilities to draw by; what must not be drawn has exactly 0."""
        z = log_p.double()
        z = z - z.amax(dim=-1, keepdim=True)  # so that the best stays 0, however small the temperature
        p = (z / max(self.temperature, COLDEST)).softmax(dim=-1)
        if self.top_k is not None and self.top_k < p.shape[-1]:
            best, which = p.topk(self.top_k)
            p = torch.zeros_like(p).scatter(1, which, best / best.sum(dim=-1, keepdim=True))
        if self.top_p is not None:
            falling, which = p.sort(dim=-1, descending=True, stable=True)
            before = falling.cumsum(dim=-1) - falling  # a token is one of the fewest if those before it do not suffice
            p = torch.zeros_like(p).scatter(1, which, falling.masked_fill(before >= self.top_p, 0.0))
        return p


AS_IT_IS = Sampling()


def sample(
    model: Speaker[State],
    state: State,
    rules: Rules,
    how: Sampling = AS_IT_IS,
    *,
    samples: int = 1,
    length_penalty: float = 1.0,
    numbers: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """Draw so many hypotheses for each row of the state, in the order in which they were drawn.

    Scores are those of the model itself, without temperature, as in any search. Each sample has random numbers of its
    own, which the seed, the number of its row (its place in the batch, unless `numbers` says otherwise) and its own
    number decide: what else is in the batch makes no difference.
    """
    require(samples >= 1, f"one sample at least, not {samples}")
    numbers = range(rules.batch) if numbers is None else numbers
    require(len(numbers) == rules.batch, f"a search of {rules.batch} row(s) was given {len(numbers)} numbers of rows")
    luck = _luck(how.seed, numbers, samples, max(rules.each("max_length")) + 1).to(model.device)

    def draw(log_p: Float[Tensor, "rows vocabulary"], step: int, which: Int[Tensor, "rows"]) -> Int[Tensor, "rows"]:
        return drawn(how.narrowed(log_p), luck[which, step])

    found = write(model, state, rules, draw, length_penalty=length_penalty, copies=samples)
    return [found[row : row + samples] for row in range(0, len(found), samples)]


def drawn(p: Float[Tensor, "rows vocabulary"], luck: Float[Tensor, "rows"]) -> Int[Tensor, "rows"]:
    """The token at which the probabilities, added up, first exceed a share of their sum; luck is from [0, 1)."""
    up_to = p.cumsum(dim=-1)
    # A share that rounding makes the whole sum would lie beyond every token.
    share = torch.minimum(luck * up_to[:, -1], up_to[:, -1].nextafter(torch.zeros_like(luck)))
    return torch.searchsorted(up_to, share[:, None], right=True)[:, 0].clamp(max=p.shape[-1] - 1)


def _luck(seed: int, numbers: Sequence[int], samples: int, steps: int) -> Float[Tensor, "rows steps"]:
    """A random number from [0, 1) for each step of each sample."""
    streams = [(seed, number, one) for number in numbers for one in range(samples)]
    return torch.from_numpy(np.stack([np.random.default_rng(stream).random(steps) for stream in streams]))
