"""Grammars: decoding of sequences of a formal language only.

A grammar has a state for each hypothesis, which search selects and reorders like that of a model. A step advances the
state by the last token and sets the log-probabilities of the tokens that may not follow to -inf. The rest keep the
model's log-probabilities, so that a hypothesis has the same score with and without a grammar.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch

from qkv.errors import InputError
from qkv.types import Bool, Float, Int, Tensor

State = TypeVar("State")


class Grammar(ABC, Generic[State]):
    """The sequences that may be decoded.

    A state is a frozen dataclass or tuple of tensors with the rows first, of fixed shapes. The methods may not wait for
    the device, so that a CUDA graph can record them, and must accept any token: rows that are finished are stepped on.
    """

    @abstractmethod
    def init_state(self, inputs: Sequence[Any], device: torch.device) -> State:
        """Return the state before the first token, for the input of each row."""

    @abstractmethod
    def empty_state(self, rows: int, device: torch.device) -> State:
        """Return a state of this shape, whose rows are set before they are used."""

    @abstractmethod
    def advance(self, state: State, token: Int[Tensor, "rows"]) -> State:
        """Return the state after one more token; also called with the begin token."""

    @abstractmethod
    def allowed(self, state: State) -> Bool[Tensor, "rows vocabulary"]:
        """Return whether each token may follow."""

    def step(
        self, state: State, token: Int[Tensor, "rows"], log_p: Float[Tensor, "rows vocabulary"]
    ) -> tuple[Float[Tensor, "rows vocabulary"], State]:
        """Return the log-probabilities after one more token, -inf where it may not follow, and the new state."""
        state = self.advance(state, token)
        return log_p.masked_fill(~self.allowed(state), -torch.inf), state


@dataclass(frozen=True)
class BracketState:
    """Open brackets, and what is left, of each row."""

    stack: Int[Tensor, "rows depth"]  # labels of the open brackets
    depth: Int[Tensor, "rows"]  # number of open brackets
    terminals: Int[Tensor, "rows"]  # terminals that must follow
    budget: Int[Tensor, "rows"]  # tokens that may follow, without the end token
    is_empty: Bool[Tensor, "rows"]  # whether the last bracket was opened by the last token
    is_first: Bool[Tensor, "rows"]  # whether no terminal and no bracket has followed yet


class BracketGrammar(Grammar[BracketState]):
    """Trees with a single root and a given number of terminals, as labeled brackets: (S (NP DT NN )NP ... )S.

    Brackets are closed in order and contain at least one terminal. The input of a row is its number of terminals, and
    the most tokens of its sequence, without the end token. A bracket is opened only if the rest still fits into them.
    """

    def __init__(
        self, opening: Sequence[int], closing: Sequence[int], terminals: Sequence[int], end: int, vocab_size: int,
        max_depth: int,
    ) -> None:  # fmt: skip
        """`opening[i]` and `closing[i]` are the tokens of the brackets with label i."""
        self._max_depth = max_depth
        self._tables: dict[torch.device, tuple[Tensor, ...]] = {}
        opens, closes = torch.full((2, vocab_size), -1)  # label of each opening and closing token
        opens[torch.tensor(opening)] = closes[torch.tensor(closing)] = torch.arange(len(opening))
        is_terminal, is_end = torch.zeros(2, vocab_size, dtype=torch.bool)
        is_terminal[torch.tensor(terminals)] = is_end[end] = True
        self._tables[torch.device("cpu")] = opens, closes, is_terminal, is_end

    def _on(self, device: torch.device) -> tuple[Tensor, ...]:
        if device not in self._tables:
            self._tables[device] = tuple(table.to(device) for table in self._tables[torch.device("cpu")])
        return self._tables[device]

    def init_state(self, inputs: Sequence[tuple[int, int]], device: torch.device) -> BracketState:
        for count, limit in inputs:
            if limit < count + 2 * (count > 1):
                raise InputError(f"a tree of {count} words has at least {count + 2} symbols, but the limit is {limit}")
        terminals, budget = torch.tensor(inputs, device=device).unbind(1)
        empty = self.empty_state(len(inputs), device)
        return replace(empty, terminals=terminals, budget=budget, is_first=torch.ones_like(empty.is_first))

    def empty_state(self, rows: int, device: torch.device) -> BracketState:
        zeros, no = (torch.zeros(rows, dtype=dtype, device=device) for dtype in (torch.long, torch.bool))
        stack = torch.zeros(rows, self._max_depth, dtype=torch.long, device=device)
        return BracketState(stack, zeros, zeros.clone(), zeros.clone(), no, no.clone())

    def advance(self, state: BracketState, token: Int[Tensor, "rows"]) -> BracketState:
        opens, closes, is_terminal, _ = self._on(token.device)
        label, closing, shifts = opens[token], closes[token] >= 0, is_terminal[token]
        opening = label >= 0
        top = state.depth.clamp(max=self._max_depth - 1)[:, None]
        stack = state.stack.scatter(1, top, torch.where(opening, label, state.stack.gather(1, top)[:, 0])[:, None])
        return BracketState(
            stack,
            (state.depth + opening.long() - closing.long()).clamp(0, self._max_depth),
            (state.terminals - shifts.long()).clamp(min=0),
            (state.budget - (opening | closing | shifts).long()).clamp(min=0),
            opening | (state.is_empty & ~closing & ~shifts),
            state.is_first & ~opening & ~shifts,
        )

    def allowed(self, state: BracketState) -> Bool[Tensor, "rows vocabulary"]:
        opens, closes, is_terminal, is_end = self._on(state.depth.device)
        left, inside = state.terminals > 0, state.depth > 0
        spare = state.budget - state.terminals - state.depth  # tokens beyond those that must follow
        # At the root: one bracket, or one terminal if there is only one.
        may_open = left & (spare >= 2) & (state.depth < self._max_depth) & (inside | state.is_first)
        may_shift = left & (inside | (state.terminals == 1))
        may_close = inside & ~state.is_empty & ((state.depth > 1) | ~left)
        top = state.stack.gather(1, (state.depth - 1).clamp(min=0)[:, None])
        return (
            (may_open[:, None] & (opens >= 0))
            | (may_shift[:, None] & is_terminal)
            | (may_close[:, None] & (closes == top))
            | (~left & ~inside)[:, None] & is_end
        )
