"""Sampling from the model's distribution, with temperature, top-k and top-p.

p_i ~ exp(z_i / T)       T: softmax temperature
top-k                    the k most likely tokens (Fan et al. 2018)
top-p                    the smallest set of most likely tokens with total probability p (Holtzman et al. 2020)
"""

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from qkv.config import Config, NonNegativeFloat, PositiveInt, require
from qkv.generation.back_pointers import Hypothesis
from qkv.generation.constraints import DecodingConstraints
from qkv.generation.search import Choose, State, StepModel, decode, decode_steps
from qkv.types import Float, Int, Tensor

MIN_TEMPERATURE = 1e-300  # already greedy; avoids overflow of 1 / T
MAX_TOKENS = 10_000_000  # sampled for one row: the random numbers of all of them are held in memory


class Sampling(Config):
    """Sampling options, applied in the order temperature, top-k, top-p."""

    temperature: NonNegativeFloat = 1.0  # 0 is greedy search
    top_k: PositiveInt | None = None  # sample from the k most likely tokens
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None  # sample from the most likely tokens of this probability
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0

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
    num_return_sequences: int = 1,
    length_penalty: float = 1.0,
    row_ids: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """Sample `num_return_sequences` hypotheses for each row of the state, in sampling order.

    Scores are the model's own log-probabilities, without temperature. The random numbers of a sample depend on the
    seed, the id of its row (its index in the batch, unless `row_ids` are given) and the index of the sample only, not
    on the rest of the batch.
    """
    row_ids = range(constraints.batch) if row_ids is None else row_ids
    require(len(row_ids) == constraints.batch, f"{len(row_ids)} row_ids for a batch of {constraints.batch} row(s)")
    choose = _choose_samples(constraints, sampling, row_ids, num_return_sequences, model.device)
    hypotheses = decode(model, state, constraints, choose, length_penalty=length_penalty, copies=num_return_sequences)
    return [hypotheses[row : row + num_return_sequences] for row in range(0, len(hypotheses), num_return_sequences)]


def stream(
    model: StepModel[State], state: State, constraints: DecodingConstraints, sampling: Sampling = DEFAULT_SAMPLING
) -> Iterator[int]:
    """Yield the tokens of one sample for a state of one row as they are generated; equal to those of `sample`."""
    choose = _choose_samples(constraints, sampling, [0], 1, model.device)
    steps = decode_steps(model, state, constraints, choose)
    while True:
        with torch.inference_mode():  # not while the generator is suspended
            token = next(steps, None)
        if token is None:
            return
        if int(token) != constraints.end:
            yield int(token)


def _choose_samples(
    constraints: DecodingConstraints, sampling: Sampling, row_ids: Sequence[int], copies: int, device: torch.device
) -> Choose:
    """Return a function that samples the next tokens, with the random numbers of all steps drawn in advance."""
    if sampling.temperature == 0:
        return lambda log_p, step, rows: log_p.argmax(dim=-1)
    steps = max(constraints.per_row("max_new_tokens")) + 1
    check_sampled_tokens(copies, steps - 1)
    uniform = _uniform(sampling.seed, row_ids, copies, steps).to(device)
    return lambda log_p, step, rows: sample_from(sampling.filter_probs(log_p), uniform[rows, step])


def check_sampled_tokens(samples: int, max_new_tokens: int) -> None:
    """Raise if the random numbers of one row would take too much memory."""
    require(
        samples * (max_new_tokens + 1) <= MAX_TOKENS,
        f"num_return_sequences = {samples:,} samples of up to max_new_tokens = {max_new_tokens:,} tokens exceed the "
        f"limit of {MAX_TOKENS:,} tokens",
    )


def sample_from(p: Float[Tensor, "rows vocabulary"], uniform: Float[Tensor, "rows"]) -> Int[Tensor, "rows"]:
    """Sample a token per row by inverting the cumulative distribution at `uniform` in [0, 1); p need not sum to 1."""
    cumulative = p.cumsum(dim=-1)
    # Rounding must not make the threshold equal to the total, which lies beyond every token.
    total = cumulative[:, -1]
    threshold = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(uniform)))
    return torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0].clamp(max=p.shape[-1] - 1)


def _uniform(seed: int, row_ids: Sequence[int], samples: int, steps: int) -> Float[Tensor, "rows steps"]:
    """Return uniform random numbers in [0, 1) for each step of each sample."""
    return torch.stack(
        [uniform_numbers(seed, row_id, sample, steps) for row_id in row_ids for sample in range(samples)]
    )


def uniform_numbers(seed: int, row_id: int, sample: int, steps: int) -> Float[Tensor, "steps"]:
    """Return uniform random numbers in [0, 1) for each step of one sample."""
    return torch.from_numpy(np.random.default_rng((seed, row_id, sample)).random(steps))
