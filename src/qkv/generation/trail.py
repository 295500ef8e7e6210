"""Hypotheses, and the trail by which a search finds its way back along them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch

from qkv.types import Int, Tensor


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that search found, without its end token."""

    tokens: tuple[int, ...]
    score: float  # log-probability, the end token included, divided by length ** length_penalty
    rows: tuple[int, ...] = field(default=(), compare=False)  # of search, one a step, the end's too: `for_hypothesis`


class Trail:
    """Which token each row of each step was given, and from which row of the step before it came."""

    def __init__(self) -> None:
        self._tokens: list[Tensor] = []  # each [rows]
        self._parents: list[Tensor] = []  # each [rows]

    def add(self, tokens: Int[Tensor, "rows"], parents: Int[Tensor, "rows"]) -> None:
        """One more step; the first has no step before it, whatever its parents."""
        self._tokens.append(tokens)
        self._parents.append(parents)

    def followed(self, ends: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """For each (step, row) that something ended at, the tokens that led there, and the rows, the last included."""
        tokens, parents = _as_lists(self._tokens), _as_lists(self._parents)
        for last, row in ends:
            said, rows = [], [row]
            for step in range(last, 0, -1):
                said.append(tokens[step][rows[-1]])
                rows.append(parents[step][rows[-1]])
            yield tuple(reversed(said)), tuple(reversed(rows))


def _as_lists(steps: list[Tensor]) -> list[list[int]]:
    """Fetched from the device at one go."""
    numbers = torch.cat(steps).tolist()
    return [numbers[begin:end] for begin, end in pairwise(accumulate(map(len, steps), initial=0))]
