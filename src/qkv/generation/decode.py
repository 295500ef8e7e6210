"""Decoding with one set of options: greedy search, beam search or sampling."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator

from qkv.config import Config, NonNegativeFloat, NonNegativeInt, PositiveInt, require
from qkv.generation.back_pointers import Hypothesis
from qkv.generation.beam import beam_search
from qkv.generation.constraints import DecodingConstraints
from qkv.generation.coverage import Coverage
from qkv.generation.sampling import Sampling, sample
from qkv.generation.search import State, StepModel, greedy_search


class GenerationConfig(Config):
    """Options of decoding: greedy search by default, beam search with `num_beams` > 1, or sampling."""

    num_beams: Annotated[int, Field(ge=1, le=1000)] = 1  # hypotheses kept at each step
    num_return_sequences: PositiveInt = 1  # hypotheses returned for each input
    length_penalty: NonNegativeFloat = 1.0  # scores are log p / length ** length_penalty
    coverage_penalty: NonNegativeFloat = 0.0  # weight of the penalty for source tokens that were not attended to
    exact: bool = False  # continue beam search until no unfinished hypothesis can beat the finished ones
    min_new_tokens: NonNegativeInt = 0
    max_new_tokens: PositiveInt | None = None  # by default a limit that depends on the input
    sampling: Sampling | None = None  # sample instead of searching

    @property
    def rows_per_request(self) -> tuple[int, int]:
        """Number of beams, and of samples, of each request."""
        return (self.num_beams, 1) if self.sampling is None else (1, self.num_return_sequences)

    @model_validator(mode="after")
    def _check(self) -> "GenerationConfig":
        if self.sampling is None:
            require(
                self.num_return_sequences <= self.num_beams,
                f"num_return_sequences {self.num_return_sequences} must not exceed num_beams {self.num_beams}",
            )
        else:
            require(self.num_beams == 1, f"num_beams {self.num_beams} cannot be combined with sampling")
        require(
            not self.coverage_penalty or self.num_beams > 1,
            f"coverage_penalty {self.coverage_penalty} requires num_beams of 2 or more",
        )
        require(not self.exact or self.num_beams > 1, "exact search requires num_beams of 2 or more")
        require(
            self.max_new_tokens is None or self.min_new_tokens <= self.max_new_tokens,
            f"min_new_tokens {self.min_new_tokens} must not exceed max_new_tokens {self.max_new_tokens}",
        )
        return self


def generate(
    model: StepModel[State],
    state: State,
    constraints: DecodingConstraints,
    config: GenerationConfig,
    *,
    coverage: Coverage | None = None,
    row_ids: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """Return the `num_return_sequences` best hypotheses of each row of the state, or samples (see `sample`)."""
    penalty = config.length_penalty
    if config.sampling is not None:
        return sample(
            model, state, constraints, config.sampling,
            num_return_sequences=config.num_return_sequences, length_penalty=penalty, row_ids=row_ids,
        )  # fmt: skip
    if config.num_beams == 1:
        return [[best] for best in greedy_search(model, state, constraints, length_penalty=penalty)]
    beams = beam_search(
        model, state, constraints,
        num_beams=config.num_beams, length_penalty=penalty, coverage=coverage, exact=config.exact,
    )  # fmt: skip
    return [hypotheses[: config.num_return_sequences] for hypotheses in beams]
