"""Speculative decoding in steps of fixed shape (see `speculative` and `static_steps`).

A slot has `guesses + 1` rows: the first runs the last token of its text, and row j the guess j. They share one cache:
the keys and values of the token at position p + j are those that row j computes, for all rows of the slot. So one step
of the batch checks all guesses, and rejected ones are overwritten by the next step.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from qkv.generation.decode import GenerationConfig
from qkv.generation.requests import Request, Tokens
from qkv.generation.runner import GuessRunner
from qkv.generation.static_steps import TokenSteps
from qkv.types import Int, Tensor

NO_GUESS = -1


class StaticDraft(ABC):
    """Guesses the next tokens of all slots, without waiting for the device."""

    @abstractmethod
    def propose(self, steps: "SpeculativeSteps") -> Int[Tensor, "slots guesses"]:
        """Return guesses, or NO_GUESS."""

    @abstractmethod
    def load(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        """Give slots to requests."""


class StaticLookup(StaticDraft):
    """`PromptLookup`: the text continues as it did after the last occurrence of its last tokens."""

    def __init__(self, max_ngram: int) -> None:
        self._max_ngram = max_ngram

    def propose(self, steps: "SpeculativeSteps") -> Int[Tensor, "slots guesses"]:
        text, lengths = steps.history, steps.lengths[:, None]
        at = torch.arange(text.shape[1], device=text.device)  # where an earlier occurrence may end
        matches = torch.zeros_like(text)  # tokens before and at each position that equal the last ones
        equal = (at < lengths - 1).expand_as(text)
        for offset in range(self._max_ngram):
            last = text.gather(1, (lengths - 1 - offset).clamp(min=0))
            shifted = text.roll(offset, dims=1)
            equal = equal & (shifted == last) & (at >= offset)
            matches = matches + equal
        best = (matches * text.shape[1] + at).argmax(dim=1, keepdim=True)  # the longest match, and of these the last
        index = best + 1 + torch.arange(steps.guesses, device=text.device)
        found = (matches.gather(1, best) > 0) & (index < lengths)
        return torch.where(found, text.gather(1, index.clamp(max=text.shape[1] - 1)), NO_GUESS)

    def load(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        """Nothing to do: guesses come from the history."""


class StaticAssistant(StaticDraft):
    """`AssistantModel`: a smaller model of the same vocabulary guesses."""

    def __init__(self, runner: GuessRunner) -> None:
        self._runner = runner

    def propose(self, steps: "SpeculativeSteps") -> Int[Tensor, "slots guesses"]:
        self._runner.lengths.copy_((steps.lengths - 1).clamp(min=0))
        token, guesses = steps.last, []
        for ahead in range(steps.guesses):
            logits = self._runner.step_all(token)
            chosen, _ = steps.choose(logits, steps.steps[:, None] + ahead)
            token = chosen[:, 0]
            guesses.append(token)
        self._runner.step_all(token)  # if all guesses are right, the last one is needed in the cache
        return torch.stack(guesses, dim=1)

    def load(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        self._runner.reset(slots)
        self._runner.prefill(slots, [request.prompt[:-1] for request in requests])


class SpeculativeSteps(TokenSteps):
    """Greedy search and sampling with guesses: several rows per slot."""

    runner: GuessRunner

    def __init__(
        self,
        runner: GuessRunner,
        tokens: Tokens,
        config: GenerationConfig,
        length: int,
        draft: StaticDraft,
        guesses: int,
    ) -> None:
        slots, device = runner.rows // (guesses + 1), runner.device
        super().__init__(runner, tokens, config, length, slots)
        self._draft, self.guesses = draft, guesses
        self.history = torch.zeros((slots, length + 2), dtype=torch.int32, device=device)  # prompt and new tokens
        self.lengths = torch.zeros(slots, dtype=torch.long, device=device)  # of the history
        self._ahead = torch.arange(guesses + 1, device=device)

    @property
    def last(self) -> Int[Tensor, "slots"]:
        """The last token of each text."""
        return self.token.view(-1, self.width)[:, 0]

    def load(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        super().load(slots, requests)
        index, device = torch.tensor(slots, device=self.plan.device), self.plan.device
        width = self.history.shape[1]
        texts = [[*request.prompt, *[0] * (width - len(request.prompt))] for request in requests]
        self.history[index] = torch.tensor(texts, dtype=torch.int32).to(device)
        self.lengths[index] = torch.tensor([len(request.prompt) for request in requests], device=device)
        self._draft.load(slots, requests)

    def step(self) -> None:
        guesses = self._draft.propose(self)
        logits = self.runner.step_guesses(torch.cat((self.last[:, None], guesses.clamp(min=0)), dim=1).int())
        at = self.steps[:, None] + self._ahead
        chosen, log_p = self.choose(logits, at)
        right = (chosen[:, :-1] == guesses).cumprod(dim=1).sum(dim=1)
        count = torch.minimum(right + 1, self.limits - self.steps)
        if self.end is not None:
            ends = (chosen == self.end).int()
            count = torch.minimum(count, (ends.cumsum(dim=1) == ends).sum(dim=1))  # nothing follows an end token
        count = torch.where(self.active, count, 0)
        new = self._ahead < count[:, None]
        for tokens, where in ((self.plan, at), (self.history, self.lengths[:, None] + self._ahead)):
            tokens.scatter_(1, where, torch.where(new, chosen, tokens.gather(1, where)))
        last = chosen.gather(1, (count - 1).clamp(min=0)[:, None])
        self.token.view(-1, self.width).copy_(torch.where(self.active[:, None], last, self.last[:, None]))
        self.totals.add_(torch.where(new, log_p, 0.0).sum(dim=1))
        self.runner.advance(count)
        self.lengths.add_(count)
        self.steps.add_(count)
        self.active.logical_and_(self.steps < self.limits)
        if self.end is not None:
            self.active.logical_and_(last[:, 0] != self.end)
