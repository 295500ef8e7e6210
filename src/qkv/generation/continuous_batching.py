"""Decoding many requests at once: continuous batching over rows of cached tokens.

A batch has a fixed number of rows. As soon as a request is finished, its rows are given to the next one in the queue,
so the batch stays full whatever the lengths. Results equal those of the simple searches in `search.py`, `beam.py` and
`sampling.py`, which decode one batch from beginning to end.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from qkv.generation.back_pointers import Hypothesis
from qkv.generation.beam_batching import BeamDecoder
from qkv.generation.decode import GenerationConfig
from qkv.generation.requests import Constraints, Request, Result, Tokens
from qkv.generation.runner import Runner
from qkv.generation.sampling import Sampling, uniform_numbers
from qkv.generation.speculative import Draft, accepted
from qkv.types import Float, Int, Tensor


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding: the source of guesses, and the most guesses per step."""

    draft: Draft
    tokens: int = 5


def decode_requests(
    runner: Runner,
    requests: Iterable[Request],
    tokens: Tokens,
    config: GenerationConfig,
    speculation: Speculation | None = None,
) -> Iterator[Result]:
    """Yield (index, hypotheses) of each request as it is finished, in any order."""
    queue, runner = deque(enumerate(requests)), tokens.constrain(runner)
    if config.sampling is None and config.num_beams > 1:
        return BeamDecoder(runner, queue, tokens, config).run()
    return TokenDecoder(runner, queue, tokens, config, speculation).run()


def stream_request(
    runner: Runner,
    request: Request,
    tokens: Tokens,
    config: GenerationConfig,
    speculation: Speculation | None = None,
) -> Iterator[int]:
    """Yield the tokens of a single request, decoded by greedy search or sampling, as they are generated."""
    return TokenDecoder(tokens.constrain(runner), deque([(0, request)]), tokens, config, speculation).stream()


class TokenDecoder:
    """Greedy search and sampling: one row per sequence."""

    def __init__(
        self,
        runner: Runner,
        queue: deque[tuple[int, Request]],
        tokens: Tokens,
        config: GenerationConfig,
        speculation: Speculation | None = None,
        slots: int | None = None,
    ) -> None:
        self._runner, self._config, self._speculation = runner, config, speculation
        self._slots = runner.rows if slots is None else slots  # sequences at a time
        self._constraints = Constraints(tokens)
        self._copies = 1 if config.sampling is None else config.num_return_sequences
        self._queue = deque((index, copy, request) for index, request in queue for copy in range(self._copies))
        self._hypotheses: dict[int, dict[int, Hypothesis]] = {}  # of requests of which some samples are missing
        self._free = deque(range(self._slots))
        self.active: list[ActiveRow] = []

    def run(self) -> Iterator[Result]:
        """Yield the hypotheses of each request once all of its samples are finished."""
        while self._queue or self.active:
            for row in self.advance():
                samples = self._hypotheses.setdefault(row.index, {})
                samples[row.copy] = row.hypothesis(self._constraints.end, self._config.length_penalty)
                if len(samples) == self._copies:
                    yield row.index, [sample for _, sample in sorted(self._hypotheses.pop(row.index).items())]

    def submit(self, index: int, request: Request, copy: int = 0) -> None:
        """Append a sample of a request to the queue; it joins the batch as soon as a row is free."""
        self._queue.append((index, copy, request))

    def advance(self) -> list["ActiveRow"]:
        """Give free rows to the next requests, decode a token of every row, and return the rows that are finished."""
        with torch.inference_mode():
            self.active = sorted([*self.active, *self._admit(self._free)], key=lambda row: row.row)
            finished = self._step(self.active) if self.active else []
        for row in finished:
            self.remove(row)
        return finished

    def remove(self, row: "ActiveRow") -> None:
        """Give the row of a sequence to the next request in the queue, whether it is finished or not."""
        self.active.remove(row)
        self._free.append(row.row)

    def stream(self) -> Iterator[int]:
        """Yield the tokens of a single sequence as they are decoded, without the end token."""
        with torch.inference_mode():
            (row,) = self._admit(deque([0]))
        finished: list[ActiveRow] = []
        while not finished:
            sent = len(row.tokens)
            with torch.inference_mode():  # not while the generator is suspended
                finished = self._step([row])
            yield from (token for token in row.tokens[sent:] if token != self._constraints.end)

    def _admit(self, free: deque[int]) -> list["ActiveRow"]:
        """Give free rows to the next requests in the queue."""
        admitted = []
        while free and self._queue:
            index, copy, request = self._queue.popleft()
            admitted.append(ActiveRow(index, copy, request, free.popleft(), self._random(request, copy)))
        if admitted:
            rows = [row.row for row in admitted]
            sources = [row.request.source for row in admitted if row.request.source is not None]
            self._reset(rows, rows if sources else ())
            if sources:
                self._runner.encode(rows, sources)
            self._runner.begin(rows, [row.request.grammar_input for row in admitted])
        return admitted

    def _reset(self, slots: Sequence[int], sources: Sequence[int]) -> None:
        """Empty the rows of slots and assign their sources."""
        self._runner.reset(slots, sources)

    def _random(self, request: Request, copy: int) -> Float[Tensor, "steps"] | None:
        sampling = self._sampling(request)
        if sampling is None:
            return None
        return uniform_numbers(sampling.seed, request.row_id, copy, request.max_new_tokens + 1)

    def _sampling(self, request: Request) -> Sampling | None:
        """Return the sampling options of a request; None for greedy search."""
        sampling = request.sampling or self._config.sampling
        return None if sampling is None or sampling.temperature == 0 else sampling

    def _step(self, active: list["ActiveRow"]) -> list["ActiveRow"]:
        """Decode one token of every row, or more if guesses were right; return the rows that are finished."""
        guesses = self._guesses(active)
        rows = [row.row for row in active]
        if not any(guesses) and all(row.tokens for row in active):
            logits = self._runner.step(torch.tensor(rows), torch.tensor([row.tokens[-1] for row in active]))
        else:
            fed = [
                [*(row.tokens[-1:] or row.request.prompt), *guess] for row, guess in zip(active, guesses, strict=True)
            ]
            logits = self._runner.extend(rows, fed, [len(guess) + 1 for guess in guesses])
        pairs = list(zip(active, guesses, strict=True))
        positions = [(row, ahead) for row, guess in pairs for ahead in range(len(guess) + 1)]
        normalizer = self._runner.log_sum_exp(logits)
        chosen = self._choose(logits, normalizer, positions)
        log_p = (logits.gather(1, chosen[:, None])[:, 0] - normalizer).tolist()
        candidates = iter(zip(chosen.tolist(), log_p, self._alternatives(logits, normalizer, positions), strict=True))
        for row, guess in pairs:
            self._append(row, guess, [next(candidates) for _ in range(len(guess) + 1)])
        if any(guesses):
            self._runner.truncate(rows, [row.cached for row in active])
        return [row for row in active if self._is_finished(row)]

    def _alternatives(
        self,
        logits: Float[Tensor, "positions vocabulary"],
        normalizer: Float[Tensor, "positions"],
        positions: Sequence[tuple["ActiveRow", int]],
    ) -> list[dict[int, float]]:
        """Return the log-probabilities of the most likely tokens at each position, as many as its request asks for."""
        counts = [row.request.alternatives for row, _ in positions]
        if not any(counts):
            return [{} for _ in counts]
        values, indices = self._runner.top_k(logits, min(max(counts), logits.shape[1]))
        rows = zip((values - normalizer[:, None]).tolist(), indices.tolist(), counts, strict=True)
        return [dict(zip(tokens[:count], log_p[:count], strict=True)) for log_p, tokens, count in rows]

    def _append(
        self, row: "ActiveRow", guess: list[int], candidates: list[tuple[int, float, dict[int, float]]]
    ) -> None:
        """Append the tokens chosen by the model: those after right guesses, and one more."""
        right = accepted(guess, [token for token, _, _ in candidates])
        for token, log_probability, alternatives in candidates[: right + 1]:
            row.tokens.append(token)
            row.log_p.append(log_probability)
            row.alternatives.append(alternatives)
            row.total += log_probability
            if self._is_finished(row):
                return

    def _is_finished(self, row: "ActiveRow") -> bool:
        end = self._constraints.end
        return row.tokens[-1] == end or len(row.tokens) == row.request.max_new_tokens + (end is not None)

    def _guesses(self, active: list["ActiveRow"]) -> list[list[int]]:
        if self._speculation is None:
            return [[] for _ in active]
        texts = [[*row.request.prompt, *row.tokens] for row in active]
        most = self._speculation.tokens
        counts = [max(0, min(most, row.request.max_new_tokens - len(row.tokens) - 1)) for row in active]

        def choose(
            logits: Float[Tensor, "rows vocabulary"], positions: Sequence[tuple[int, int]]
        ) -> Int[Tensor, "rows"]:
            rows = [(active[index], ahead) for index, ahead in positions]
            return self._choose(logits, self._runner.log_sum_exp(logits), rows)

        return self._speculation.draft.propose([row.row for row in active], texts, counts, choose)

    def _choose(
        self,
        logits: Float[Tensor, "positions vocabulary"],
        normalizer: Float[Tensor, "positions"],
        positions: Sequence[tuple["ActiveRow", int]],
    ) -> Int[Tensor, "positions"]:
        """Choose tokens at (row, number of guesses before it); changes the logits according to the constraints."""
        steps = [len(row.tokens) + ahead for row, ahead in positions]
        self._constraints.apply(logits, [row.request for row, _ in positions], steps)
        groups: dict[tuple[Any, ...], list[int]] = {}  # positions with the same sampling options
        for number, (row, _) in enumerate(positions):
            sampling = self._sampling(row.request)
            key = () if sampling is None else (sampling.temperature, sampling.top_k, sampling.top_p)
            groups.setdefault(key, []).append(number)
        chosen = torch.zeros(len(positions), dtype=torch.long, device=logits.device)
        for numbers in groups.values():
            some = slice(None) if len(groups) == 1 else torch.tensor(numbers, device=logits.device)
            rows = [positions[number][0] for number in numbers]
            uniform = [row.uniform[steps[n]] for row, n in zip(rows, numbers, strict=True) if row.uniform is not None]
            chosen[some] = self._select(
                logits[some], normalizer[some], self._sampling(rows[0].request), torch.stack(uniform or [NO_NUMBERS])
            )
        return chosen

    def _select(
        self,
        logits: Float[Tensor, "positions vocabulary"],
        normalizer: Float[Tensor, "positions"],
        sampling: Sampling | None,
        uniform: Float[Tensor, "_"],
    ) -> Int[Tensor, "positions"]:
        """Return the most likely tokens, or sampled ones."""
        if sampling is None:
            return self._runner.top_k(logits, 1)[1][:, 0]
        return self._runner.sample(logits - normalizer[:, None], sampling, uniform.to(logits.device))


@dataclass(eq=False)
class ActiveRow:
    """A sequence that is being decoded."""

    index: int  # of its request
    copy: int  # number of the sample
    request: Request
    row: int
    uniform: Float[Tensor, "steps"] | None  # random numbers of all steps
    tokens: list[int] = field(default_factory=list)  # new tokens
    total: float = 0.0  # log-probability of the new tokens
    log_p: list[float] = field(default_factory=list)  # of each new token
    alternatives: list[dict[int, float]] = field(default_factory=list)  # log p of the most likely tokens at each step

    @property
    def cached(self) -> int:
        """Number of tokens that the cache should hold: all but the last."""
        return len(self.request.prompt) + len(self.tokens) - 1

    def hypothesis(self, end: int | None, length_penalty: float) -> Hypothesis:
        tokens = self.tokens if end is None else self.tokens[:-1]
        return Hypothesis(tuple(tokens), self.total / len(self.tokens) ** length_penalty)


NO_NUMBERS = torch.zeros(())  # of a greedy search
