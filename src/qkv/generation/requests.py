"""Requests to the decoding engine: what to continue or to translate, and the tokens that may follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qkv.errors import InputError
from qkv.generation.back_pointers import Hypothesis
from qkv.generation.constrained_runner import ConstrainedRunner
from qkv.generation.grammar import Grammar
from qkv.generation.runner import Runner
from qkv.generation.sampling import Sampling
from qkv.types import Float, Tensor


@dataclass(frozen=True)
class Request:
    """One input to continue or to translate. Lengths do not count the end token."""

    prompt: Sequence[int]  # tokens before the first new one; at least one
    max_new_tokens: int
    min_new_tokens: int = 0
    prefix: Sequence[int] = ()  # forced first new tokens
    source: Sequence[int] | Tensor | None = None  # tokens or image to encode, for encoder-decoders
    row_id: int = 0  # of the random numbers in sampling
    grammar_input: Any = None  # of its row, if there is a grammar
    sampling: Sampling | None = None  # instead of that of the config
    alternatives: int = 0  # most likely tokens to record at each step

    @property
    def capacity(self) -> int:
        """Most tokens in a cache, the end token counted."""
        return len(self.prompt) + self.max_new_tokens + 1

    @property
    def source_length(self) -> int:
        """Number of source tokens; 0 for language models and for images, whose encodings have one size."""
        return 0 if self.source is None or isinstance(self.source, Tensor) else len(self.source)

    @property
    def expected_length(self) -> int:
        """A guess at the number of new tokens, to decode long requests first."""
        return self.source_length or self.max_new_tokens


@dataclass(frozen=True)
class Tokens:
    """Tokens with a special role, the same for all requests."""

    end: int | None
    suppressed: Sequence[int] = ()  # never generated
    vocab_size: int | None = None  # larger ids are never generated
    begin_suppressed: Sequence[int] = ()  # not generated first
    grammar: Grammar[Any] | None = None  # of the sequences that may be generated

    def constrain(self, runner: Runner) -> Runner:
        """Return the runner, limited to the sequences of the grammar if there is one."""
        return runner if self.grammar is None else ConstrainedRunner(runner, self.grammar)


Result = tuple[int, list[Hypothesis]]  # index of a request, and its hypotheses, best first


def require_end(tokens: Tokens) -> int:
    """Return the end token; raise an error without one."""
    if tokens.end is None:
        raise InputError("beam search requires an end token")
    return tokens.end


class Constraints:
    """Applies the constraints of each row to its logits."""

    def __init__(self, tokens: Tokens) -> None:
        self.end = tokens.end
        self._vocab_size = tokens.vocab_size
        self._suppressed = torch.tensor(tokens.suppressed, dtype=torch.long)
        self._begin_suppressed = torch.tensor(tokens.begin_suppressed, dtype=torch.long)

    def apply(
        self, logits: Float[Tensor, "rows vocabulary"], requests: Sequence[Request], steps: Sequence[int]
    ) -> None:
        """Set the logits of tokens that may not follow the first `steps` new tokens of each row to -inf, in place."""
        forced, unfinished = [], []  # (row, only token), and rows that may not end yet
        for row, (request, step) in enumerate(zip(requests, steps, strict=True)):
            if step < len(request.prefix):
                forced.append((row, request.prefix[step]))
            elif self.end is not None and step >= request.max_new_tokens:
                forced.append((row, self.end))
            elif self.end is not None and step < request.min_new_tokens:
                unfinished.append(row)
        values = [float(logits[row, token]) for row, token in forced]
        if unfinished:
            logits[unfinished, self.end] = -torch.inf
        if len(self._suppressed):
            logits.index_fill_(1, self._suppressed, -torch.inf)
        if len(self._begin_suppressed) and 0 in steps:
            first = torch.tensor([row for row, step in enumerate(steps) if step == 0])
            logits[first[:, None], self._begin_suppressed] = -torch.inf
        if self._vocab_size is not None and self._vocab_size < logits.shape[1]:
            logits[:, self._vocab_size :] = -torch.inf
        for (row, token), value in zip(forced, values, strict=True):
            logits[row] = -torch.inf
            logits[row, token] = value
