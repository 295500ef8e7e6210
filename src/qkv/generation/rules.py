"""What a search may say: where it begins, how long it may go on, and which tokens it must or must not use."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from qkv.errors import InputError
from qkv.types import Bool, Float, Int, Tensor

MOST_HYPOTHESES = 1000  # of one row, in a beam or side by side
ANY = -1  # in the place of a forced token: the search is free there


@dataclass(frozen=True)
class Rules:
    """The rules for each of the `batch` rows of a state. Lengths do not count the end token.

    What is given as one value holds for all rows, what is given as a sequence has one for each. Without an end token, a
    row goes on until it has `max_length` tokens. A row's prefix is how it has to begin, whatever else is forbidden.
    """

    batch: int
    begin: int | Sequence[int]  # the token before the first
    end: int | None
    max_length: int | Sequence[int]
    min_length: int | Sequence[int] = 0
    never: Sequence[int] = ()  # tokens that are not said, however probable
    prefixes: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"a search needs a row at least, not {self.batch}")
        for name in ("begin", "max_length", "min_length"):
            self.each(name)
        if self.prefixes and len(self.prefixes) != self.batch:
            raise InputError(f"a search of {self.batch} row(s) was given {len(self.prefixes)} prefixes: one for each")
        for row, (least, most) in enumerate(zip(self.each("min_length"), self.each("max_length"), strict=True)):
            prefix = self.prefixes[row] if self.prefixes else ()
            if not 0 <= least <= most:
                raise InputError(f"row {row} of a search may have no fewer than {least} tokens and no more than {most}")
            if len(prefix) > most:
                raise InputError(f"row {row} of a search must begin with {len(prefix)} tokens, but may have {most}")
            if self.end in prefix:
                raise InputError(f"row {row} of a search must begin with an end token: leave it out of the prefix")
        if self.end is not None and self.end in self.never:
            raise InputError("a search that never says its end token cannot end: give it no end token")

    def each(self, name: str) -> Sequence[int]:
        """A rule as one value for each row."""
        value = getattr(self, name)
        values = [value] * self.batch if isinstance(value, int) else value
        if len(values) != self.batch:
            raise InputError(f"a search of {self.batch} row(s) was given {name} for {len(values)}: give one for each")
        return values


class Judge:
    """Holds a search to its rules, on the device where it runs, without asking the device for anything."""

    def __init__(self, rules: Rules, device: torch.device) -> None:
        limits, least = rules.each("max_length"), rules.each("min_length")
        beginnings = rules.prefixes or [()] * rules.batch
        self.end = rules.end
        self.longest = max(limits)
        self._shortest_limit = min(limits)
        self._longest_least = max(least)
        self._longest_prefix = max(map(len, beginnings))
        self._limits = torch.tensor(limits, device=device)
        self._least = torch.tensor(least, device=device)
        self._never = torch.tensor(rules.never, dtype=torch.long, device=device)
        padded = [[*prefix, *[ANY] * (self._longest_prefix - len(prefix))] for prefix in beginnings]
        self._forced = torch.tensor(padded, dtype=torch.long, device=device)

    @property
    def steps(self) -> int:
        """How many steps a search can take: one for each token, and one to end."""
        return self.longest if self.end is None else self.longest + 1

    def limits(self, numbers: Int[Tensor, "rows"]) -> Int[Tensor, "rows"]:
        """The greatest length of the numbered rows."""
        return self._limits[numbers]

    def allowed(
        self, log_p: Float[Tensor, "rows vocabulary"], step: int, numbers: Int[Tensor, "rows"]
    ) -> Float[Tensor, "rows vocabulary"]:
        """The log-probabilities of the token to come after `step` others, -inf for what the numbered rows may not say.

        Written into what is given.
        """
        free = log_p.clone() if step < self._longest_prefix else log_p
        free.index_fill_(1, self._never, -torch.inf)
        if self.end is not None:
            if step < self._longest_least:
                free[:, self.end].masked_fill_(step < self._least[numbers], -torch.inf)
            if step >= self._shortest_limit:
                full = step >= self._limits[numbers]
                free.masked_fill_(full[:, None] & self._other_than(self.end, free), -torch.inf)
        if step >= self._longest_prefix:
            return free
        forced = self._forced[numbers, step][:, None]
        return torch.where(forced == ANY, free, log_p.masked_fill_(self._other_than(forced, log_p), -torch.inf))

    def stops(self, token: Int[Tensor, "rows"], step: int, numbers: Int[Tensor, "rows"]) -> Bool[Tensor, "rows"]:
        """Whether the numbered rows are complete with this token, which has come after `step` others."""
        if self.end is None:
            return step + 1 >= self._limits[numbers]
        return (token == self.end) | (step >= self._limits[numbers])  # also where a model gives no numbers to choose by

    def _other_than(
        self, token: int | Int[Tensor, "rows 1"], like: Float[Tensor, "rows vocabulary"]
    ) -> Bool[Tensor, "#rows vocabulary"]:
        return torch.arange(like.shape[1], device=like.device)[None] != token
