"""Hypotheses, and the back-pointers from which a search reconstructs them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch

from qkv.types import Int, Tensor


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence, without its end token."""

    tokens: tuple[int, ...]
    score: float  # log-probability, the end token included, divided by length ** length_penalty
    rows: tuple[int, ...] = field(default=(), compare=False)  # its row in each step of the search, for `for_hypothesis`


class BackPointers:
    """Input token and parent row of every row of every step."""

    def __init__(self) -> None:
        self._tokens: list[Tensor] = []  # each [rows]
        self._parents: list[Tensor] = []  # each [rows]

    def add(self, tokens: Int[Tensor, "rows"], parents: Int[Tensor, "rows"]) -> None:
        """Append a step; the parents of the first step are ignored."""
        self._tokens.append(tokens)
        self._parents.append(parents)

    def trace(self, ends: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield the tokens and rows on the path to each (step, row); the rows include the last."""
        tokens, parents = _to_lists(self._tokens), _to_lists(self._parents)
        for last, row in ends:
            path, rows = [], [row]
            for step in range(last, 0, -1):
                path.append(tokens[step][rows[-1]])
                rows.append(parents[step][rows[-1]])
            yield tuple(reversed(path)), tuple(reversed(rows))


def _to_lists(steps: list[Tensor]) -> list[list[int]]:
    """Convert tensors to lists with a single device transfer."""
    values = torch.cat(steps).tolist()
    return [values[begin:end] for begin, end in pairwise(accumulate(map(len, steps), initial=0))]
