"""Constraints on decoded sequences: begin and end tokens, length limits, suppressed tokens and forced prefixes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qkv.errors import InputError
from qkv.generation.grammar import Grammar
from qkv.nn.interfaces import select
from qkv.types import Bool, Float, Int, Tensor

UNCONSTRAINED = -1  # padding of the forced prefixes


@dataclass(frozen=True)
class DecodingConstraints:
    """Constraints on each of the `batch` rows of a state. Lengths do not count the end token.

    A single value applies to all rows, a sequence has one value per row. Without an end token, a row is decoded until
    it has `max_new_tokens` tokens. Prefixes are forced even where they contain suppressed tokens.
    """

    batch: int
    begin: int | Sequence[int]  # input token of the first step
    end: int | None
    max_new_tokens: int | Sequence[int]
    min_new_tokens: int | Sequence[int] = 0
    suppress_tokens: Sequence[int] = ()  # tokens that are never generated
    vocab_size: int | None = None  # larger ids, which the model may have but not its tokenizer, are never generated
    prefix_tokens: Sequence[Sequence[int]] = ()  # forced first tokens of each row
    begin_suppress_tokens: Sequence[int] = ()  # tokens that are not generated first
    grammar: Grammar[Any] | None = None  # of the sequences that may be generated
    grammar_inputs: Sequence[Any] = ()  # of each row

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"batch must be at least 1, not {self.batch}")
        for name in ("begin", "max_new_tokens", "min_new_tokens"):
            self.per_row(name)
        if self.prefix_tokens and len(self.prefix_tokens) != self.batch:
            raise InputError(f"prefix_tokens has {len(self.prefix_tokens)} rows, but the batch has {self.batch}")
        prefixes = self.prefix_tokens or [()] * self.batch
        limits = zip(self.per_row("min_new_tokens"), self.per_row("max_new_tokens"), prefixes, strict=True)
        for minimum, maximum, prefix in limits:
            if not 0 <= minimum <= maximum:
                raise InputError(f"min_new_tokens must be between 0 and max_new_tokens = {maximum}, not {minimum}")
            if len(prefix) > maximum:
                raise InputError(f"the prefix has {len(prefix)} tokens, but max_new_tokens is {maximum}")
            if self.end in prefix:
                raise InputError("the prefix contains the end token; remove it")
        if self.grammar is not None and len(self.grammar_inputs) != self.batch:
            raise InputError(f"grammar_inputs has {len(self.grammar_inputs)} rows, but the batch has {self.batch}")
        if self.end is not None and self.end in self.suppress_tokens:
            raise InputError("suppress_tokens contains the end token; set end to None to decode without one")

    def per_row(self, name: str) -> Sequence[int]:
        """Return a constraint as one value per row."""
        value = getattr(self, name)
        values = [value] * self.batch if isinstance(value, int) else value
        if len(values) != self.batch:
            raise InputError(f"{name} has {len(values)} values, but the batch has {self.batch} rows")
        return values


class ConstraintState:
    """Applies constraints to log-probabilities on the device, without synchronizing with it."""

    def __init__(self, constraints: DecodingConstraints, device: torch.device) -> None:
        max_lengths, min_lengths = constraints.per_row("max_new_tokens"), constraints.per_row("min_new_tokens")
        prefixes = constraints.prefix_tokens or [()] * constraints.batch
        self.end = constraints.end
        self._grammar, self._grammar_inputs, self._device = constraints.grammar, constraints.grammar_inputs, device
        self.vocab_size = constraints.vocab_size
        self.longest = max(max_lengths)
        self._smallest_max_length = min(max_lengths)
        self._largest_min_length = max(min_lengths)
        self._longest_prefix = max(map(len, prefixes))
        self._max_lengths = torch.tensor(max_lengths, device=device)
        self._min_lengths = torch.tensor(min_lengths, device=device)
        self._suppressed = torch.tensor(constraints.suppress_tokens, dtype=torch.long, device=device)
        self._begin_suppressed = torch.tensor(constraints.begin_suppress_tokens, dtype=torch.long, device=device)
        padded = [[*prefix, *[UNCONSTRAINED] * (self._longest_prefix - len(prefix))] for prefix in prefixes]
        self._forced = torch.tensor(padded, dtype=torch.long, device=device)

    @property
    def steps(self) -> int:
        """Maximum number of steps: one per token, and one for the end token."""
        return self.longest if self.end is None else self.longest + 1

    def max_lengths(self, row_ids: Int[Tensor, "rows"]) -> Int[Tensor, "rows"]:
        """Return the maximum length of each row."""
        return self._max_lengths[row_ids]

    def apply(
        self, log_p: Float[Tensor, "rows vocabulary"], step: int, row_ids: Int[Tensor, "rows"]
    ) -> Float[Tensor, "rows vocabulary"]:
        """Set the log-probabilities of tokens that may not follow the first `step` tokens to -inf; changes `log_p`."""
        free = log_p.clone() if step < self._longest_prefix else log_p
        free.index_fill_(1, self._suppressed, -torch.inf)
        if step == 0:
            free.index_fill_(1, self._begin_suppressed, -torch.inf)
        if self.vocab_size is not None:
            free[:, self.vocab_size :] = -torch.inf
        if self.end is not None:
            if step < self._largest_min_length:
                free[:, self.end].masked_fill_(step < self._min_lengths[row_ids], -torch.inf)
            if step >= self._smallest_max_length:
                full = step >= self._max_lengths[row_ids]
                free.masked_fill_(full[:, None] & self._all_except(self.end, free), -torch.inf)
        if step >= self._longest_prefix:
            return free
        forced = self._forced[row_ids, step][:, None]
        return torch.where(
            forced == UNCONSTRAINED, free, log_p.masked_fill_(self._all_except(forced, log_p), -torch.inf)
        )

    def init_grammar(self, row_ids: Int[Tensor, "rows"]) -> Any:
        """Return the state of the grammar before the first token; () without a grammar."""
        if self._grammar is None:
            return ()
        return select(self._grammar.init_state(self._grammar_inputs, self._device), row_ids)

    def step_grammar(
        self, log_p: Float[Tensor, "rows vocabulary"], token: Int[Tensor, "rows"], state: Any
    ) -> tuple[Float[Tensor, "rows vocabulary"], Any]:
        """Return the log-probabilities after a token, -inf where the grammar forbids one, and its new state."""
        return (log_p, ()) if self._grammar is None else self._grammar.step(state, token, log_p)

    def is_finished(self, token: Int[Tensor, "rows"], step: int, row_ids: Int[Tensor, "rows"]) -> Bool[Tensor, "rows"]:
        """Return whether each row is complete with this token, generated at step `step`."""
        if self.end is None:
            return step + 1 >= self._max_lengths[row_ids]
        return (token == self.end) | (step >= self._max_lengths[row_ids])  # also if the logits are NaN

    def _all_except(
        self, token: int | Int[Tensor, "rows 1"], like: Float[Tensor, "rows vocabulary"]
    ) -> Bool[Tensor, "#rows vocabulary"]:
        return torch.arange(like.shape[1], device=like.device)[None] != token
