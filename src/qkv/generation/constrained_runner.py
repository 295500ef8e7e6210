"""Rows of a batch whose sequences are limited to those of a grammar, on any device."""

from collections.abc import Sequence
from typing import Any

import torch

from qkv.errors import InputError
from qkv.generation.grammar import Grammar
from qkv.generation.runner import Runner
from qkv.generation.sampling import Sampling
from qkv.nn.interfaces import select, state_tensors
from qkv.types import Float, Int, Tensor


class ConstrainedRunner(Runner):
    """A runner that returns the log-probabilities of the tokens that a grammar allows, instead of logits."""

    def __init__(self, runner: Runner, grammar: Grammar[Any]) -> None:
        self._runner, self._grammar = runner, grammar
        self.rows, self.vocab_size, self.device = runner.rows, runner.vocab_size, runner.device
        self._state = grammar.empty_state(runner.rows, runner.device)

    def begin(self, rows: Sequence[int], inputs: Sequence[Any]) -> None:
        self._write(torch.tensor(rows, device=self.device), self._grammar.init_state(inputs, self.device))

    def encode(self, sources: Sequence[int], inputs: Sequence[Any]) -> None:
        self._runner.encode(sources, inputs)

    def reset(self, rows: Sequence[int], sources: Sequence[int] = ()) -> None:
        self._runner.reset(rows, sources)

    def reorder(self, rows: Int[Tensor, "rows"], parents: Int[Tensor, "rows"]) -> None:
        self._runner.reorder(rows, parents)
        self._write(rows, select(self._state, parents.to(self.device)))

    def step(self, rows: Int[Tensor, "rows"], tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocabulary"]:
        return self._constrain(rows, tokens, self._runner.step(rows, tokens))

    def step_all(self, tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocabulary"]:
        return self._constrain(torch.arange(self.rows, device=self.device), tokens, self._runner.step_all(tokens))

    def extend(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], wanted: Sequence[int] | None = None
    ) -> Float[Tensor, "positions vocabulary"]:
        if any(len(text) != 1 for text in tokens):
            raise InputError("a grammar cannot be combined with prompts of several tokens or with speculative decoding")
        last = torch.tensor([text[0] for text in tokens], device=self.device)
        return self._constrain(torch.tensor(rows, device=self.device), last, self._runner.extend(rows, tokens, wanted))

    def truncate(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        raise InputError("a grammar cannot be combined with speculative decoding")

    def log_sum_exp(self, logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows"]:
        return logits.new_zeros(len(logits))  # they are normalized before the grammar is applied

    def top_k(
        self, values: Float[Tensor, "rows vocabulary"], k: int
    ) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
        return self._runner.top_k(values, k)

    def sample(
        self, log_p: Float[Tensor, "rows vocabulary"], sampling: Sampling, uniform: Float[Tensor, "rows"]
    ) -> Int[Tensor, "rows"]:
        return self._runner.sample(log_p, sampling, uniform)

    def _constrain(
        self, rows: Int[Tensor, "rows"], tokens: Int[Tensor, "rows"], logits: Float[Tensor, "rows vocabulary"]
    ) -> Float[Tensor, "rows vocabulary"]:
        rows, log_p = rows.to(self.device), logits - self._runner.log_sum_exp(logits)[:, None]
        log_p, state = self._grammar.step(select(self._state, rows), tokens.to(self.device).long(), log_p)
        self._write(rows, state)
        return log_p

    def _write(self, rows: Int[Tensor, "rows"], state: Any) -> None:
        new = state_tensors(state)
        for name, tensor in state_tensors(self._state).items():
            tensor[rows] = new[name]
