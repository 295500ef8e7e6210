"""Decoding many requests at once: continuous batching over rows of cached tokens.

A batch has a fixed number of rows. As soon as a request is finished, its rows are given to the next one in the queue,
so the batch stays full whatever the lengths. Results equal those of the simple searches in `search.py`, `beam.py` and
`sampling.py`, which decode one batch from beginning to end.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from qkv.errors import InputError
from qkv.generation.back_pointers import Hypothesis
from qkv.generation.constrained_runner import ConstrainedRunner
from qkv.generation.decode import GenerationConfig
from qkv.generation.grammar import Grammar
from qkv.generation.runner import Runner
from qkv.generation.sampling import uniform_numbers
from qkv.generation.speculative import Draft, accepted
from qkv.types import Bool, Float, Int, Tensor


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


def decode_requests(
    runner: Runner,
    requests: Iterable[Request],
    tokens: Tokens,
    config: GenerationConfig,
    speculation: "Speculation | None" = None,
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
    speculation: "Speculation | None" = None,
) -> Iterator[int]:
    """Yield the tokens of a single request, decoded by greedy search or sampling, as they are generated."""
    return TokenDecoder(tokens.constrain(runner), deque([(0, request)]), tokens, config, speculation).stream()


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding: the source of guesses, and the most guesses per step."""

    draft: Draft
    tokens: int = 5


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


class TokenDecoder:
    """Greedy search and sampling: one row per sequence."""

    def __init__(
        self,
        runner: Runner,
        queue: deque[tuple[int, Request]],
        tokens: Tokens,
        config: GenerationConfig,
        speculation: Speculation | None = None,
    ) -> None:
        self._runner, self._config, self._speculation = runner, config, speculation
        self._slots = runner.rows  # sequences at a time
        self._constraints = Constraints(tokens)
        self._copies = 1 if config.sampling is None else config.num_return_sequences
        self._queue = deque((index, copy, request) for index, request in queue for copy in range(self._copies))
        self._hypotheses: dict[int, dict[int, Hypothesis]] = {}  # of requests of which some samples are missing

    def run(self) -> Iterator[Result]:
        """Yield the hypotheses of each request once all of its samples are finished."""
        free, active = deque(range(self._slots)), list[ActiveRow]()
        while self._queue or active:
            with torch.inference_mode():
                active = sorted([*active, *self._admit(free)], key=lambda row: row.row)
                finished = self._step(active)
            for row in finished:
                active.remove(row)
                free.append(row.row)
                samples = self._hypotheses.setdefault(row.index, {})
                samples[row.copy] = row.hypothesis(self._constraints.end, self._config.length_penalty)
                if len(samples) == self._copies:
                    yield row.index, [sample for _, sample in sorted(self._hypotheses.pop(row.index).items())]

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
        sampling = self._config.sampling
        if sampling is None or sampling.temperature == 0:
            return None
        return uniform_numbers(sampling.seed, request.row_id, copy, request.max_new_tokens + 1)

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
        candidates = iter(zip(chosen.tolist(), log_p, strict=True))
        for row, guess in pairs:
            self._append(row, guess, [next(candidates) for _ in range(len(guess) + 1)])
        if any(guesses):
            self._runner.truncate(rows, [row.cached for row in active])
        return [row for row in active if self._is_finished(row)]

    def _append(self, row: "ActiveRow", guess: list[int], candidates: list[tuple[int, float]]) -> None:
        """Append the tokens chosen by the model: those after right guesses, and one more."""
        right = accepted(guess, [token for token, _ in candidates])
        for token, log_probability in candidates[: right + 1]:
            row.tokens.append(token)
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
        sampling = self._config.sampling
        if sampling is None or sampling.temperature == 0:
            return self._runner.top_k(logits, 1)[1][:, 0]
        numbers = [_at(row.uniform, step) for (row, _), step in zip(positions, steps, strict=True)]
        uniform = torch.stack(numbers).to(logits.device)
        return self._runner.sample(logits - normalizer[:, None], sampling, uniform)


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

    @property
    def cached(self) -> int:
        """Number of tokens that the cache should hold: all but the last."""
        return len(self.request.prompt) + len(self.tokens) - 1

    def hypothesis(self, end: int | None, length_penalty: float) -> Hypothesis:
        tokens = self.tokens if end is None else self.tokens[:-1]
        return Hypothesis(tuple(tokens), self.total / len(self.tokens) ** length_penalty)


def _at(uniform: Float[Tensor, "steps"] | None, step: int) -> Float[Tensor, ""]:
    assert uniform is not None
    return uniform[step]


@dataclass(frozen=True)
class Beams:
    """Hypotheses of groups of beams: the unfinished ones, and the best finished ones."""

    running: Float[Tensor, "groups beams"]  # log p of the unfinished hypotheses
    history: Int[Tensor, "groups beams steps"]  # their tokens
    scores: Float[Tensor, "groups beams"]  # of the finished hypotheses, best first; -inf for empty slots
    finished: Int[Tensor, "groups beams steps"]  # their tokens
    lengths: Int[Tensor, "groups beams"]

    @classmethod
    def empty(cls, groups: int, beams: int, steps: int, device: torch.device) -> "Beams":
        """Return groups without hypotheses."""
        none = torch.full((groups, beams), -torch.inf, device=device)
        tokens = torch.zeros((groups, beams, steps), dtype=torch.long, device=device)
        return cls(none, tokens, none.clone(), tokens.clone(), tokens[:, :, 0].clone())

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.running, self.history, self.scores, self.finished, self.lengths

    def select(self, groups: Int[Tensor, "groups"]) -> "Beams":
        """Return some of the groups."""
        return Beams(*(tensor[groups] for tensor in self.tensors))

    def cpu(self) -> "Beams":
        """Return the groups in the memory of the host."""
        return Beams(*(tensor.cpu() for tensor in self.tensors))

    def store(self, groups: Int[Tensor, "groups"], beams: "Beams") -> None:
        """Replace some of the groups."""
        for old, new in zip(self.tensors, beams.tensors, strict=True):
            old[groups] = new

    def begin(self, groups: Sequence[int]) -> None:
        """Empty groups. All beams start out equal: all but one are disabled, or each would find the same hypotheses."""
        self.running[groups] = -torch.inf
        self.running[groups, 0] = 0.0
        self.scores[groups] = -torch.inf

    def extend(
        self,
        log_p: Float[Tensor, "groups beams k"],
        tokens: Int[Tensor, "groups beams k"],
        steps: Int[Tensor, "groups 1"],
        limits: Int[Tensor, "groups 1"],
        end: int,
        config: GenerationConfig,
    ) -> tuple["Beams", Int[Tensor, "groups beams"], Int[Tensor, "groups beams"], Bool[Tensor, "groups"]]:
        """Extend every hypothesis by one of its `k` best next tokens, after `steps` tokens of at most `limits`.

        Return the new beams, their parents and last tokens, and whether the search of each group has ended. It never
        waits for a GPU.
        """
        beams, penalty = self.running.shape[1], config.length_penalty
        totals = (self.running[:, :, None] + log_p).flatten(1)
        scores, indices = totals.topk(min(2 * beams, totals.shape[1]))
        beam, token = indices // log_p.shape[2], tokens.flatten(1).gather(1, indices)
        is_end = token.eq(end)
        # A hypothesis ends only if the end token is among the `num_beams` best candidates.
        ends = scores.masked_fill(~is_end, -torch.inf)[:, :beams] / (steps + 1) ** penalty
        merged = self._finish(ends, beam[:, :beams], steps)
        running, rank = scores.masked_fill(is_end, -torch.inf).topk(beams)
        beam, token = beam.gather(1, rank), token.gather(1, rank)
        # Exact: an upper bound, as log p can only fall, and the length grow to its maximum.
        bound = running / (limits if config.exact else steps + 2) ** penalty
        done = ~(bound.amax(dim=1) > merged.scores[:, -1])  # also if the scores are NaN
        history = self._history_of(beam)
        history.scatter_(2, steps[:, :, None].expand(-1, beams, 1), token[:, :, None])
        return replace(merged, running=running, history=history), beam, token, done

    def _finish(
        self, scores: Float[Tensor, "groups beams"], beam: Int[Tensor, "groups beams"], steps: Int[Tensor, "groups 1"]
    ) -> "Beams":
        """Keep the best finished hypotheses, with those that end now."""
        if not scores.is_cuda and not (scores > -torch.inf).any():
            return self
        best, rank = torch.cat((self.scores, scores), dim=1).topk(scores.shape[1])
        tokens = torch.cat((self.finished, self._history_of(beam)), dim=1)
        lengths = torch.cat((self.lengths, steps.expand_as(scores)), dim=1)
        finished = tokens.gather(1, rank[:, :, None].expand(-1, -1, tokens.shape[2]))
        return replace(self, scores=best, finished=finished, lengths=lengths.gather(1, rank))

    def _history_of(self, beam: Int[Tensor, "groups beams"]) -> Int[Tensor, "groups beams steps"]:
        return self.history.gather(1, beam[:, :, None].expand_as(self.history))

    def hypotheses(self, group: int, count: int) -> list[Hypothesis]:
        """Return the `count` best finished hypotheses of a group, best first."""
        tensors = self.scores, self.finished, self.lengths
        slots = zip(*(tensor[group, :count].tolist() for tensor in tensors), strict=True)
        return [Hypothesis(tuple(tokens[:length]), score) for score, tokens, length in slots if score != -torch.inf]


class BeamDecoder:
    """Beam search: `num_beams` rows per request, all of one length."""

    def __init__(
        self, runner: Runner, queue: deque[tuple[int, Request]], tokens: Tokens, config: GenerationConfig
    ) -> None:
        self._runner, self._queue, self._config = runner, queue, config
        self._constraints = Constraints(tokens)
        self._end = require_end(tokens)
        self._beams = config.num_beams
        self._groups = runner.rows // self._beams
        if self._groups < 1:
            raise InputError(f"num_beams {self._beams} exceeds the {runner.rows} rows of the batch")
        self._state = self._empty_beams()

    def _empty_beams(self) -> Beams:
        longest = max((request.max_new_tokens for _, request in self._queue), default=0) + 1
        return Beams.empty(self._groups, self._beams, longest, self._runner.device)

    def run(self) -> Iterator[Result]:
        """Yield the hypotheses of each request once its search has ended."""
        free, active = deque(range(self._groups)), list[ActiveGroup]()
        while self._queue or active:
            with torch.inference_mode():
                active = sorted([*active, *self._admit(free)], key=lambda group: group.group)
                done = self._step(active)
                results = [(group.index, self._hypotheses(group.group)) for group in done]
            for group in done:
                active.remove(group)
                free.append(group.group)
            yield from results

    def _admit(self, free: deque[int]) -> list["ActiveGroup"]:
        admitted = []
        while free and self._queue:
            admitted.append(ActiveGroup(*self._queue.popleft(), free.popleft()))
        if admitted:
            groups = [group.group for group in admitted]
            rows = [group * self._beams + beam for group in groups for beam in range(self._beams)]
            sources = [group.request.source for group in admitted if group.request.source is not None]
            self._runner.reset(rows, [row // self._beams for row in rows] if sources else ())
            if sources:
                self._runner.encode(groups, sources)
            self._runner.begin(rows, [group.request.grammar_input for group in admitted for _ in range(self._beams)])
            self._state.begin(groups)
        return admitted

    def _step(self, active: list["ActiveGroup"]) -> list["ActiveGroup"]:
        """Extend the hypotheses of every group by one token; return the groups that are done."""
        log_p, tokens, rows_run = self._candidates(active)
        groups = torch.tensor([group.group for group in active])
        steps = torch.tensor([group.step for group in active])[:, None]
        limits = torch.tensor([group.request.max_new_tokens + 1 for group in active])[:, None]
        beams, parents, _, done = self._state.select(groups).extend(
            log_p[rows_run], tokens[rows_run], steps, limits, self._end, self._config
        )
        self._state.store(groups, beams)
        first, going = groups[:, None] * self._beams, ~done
        if going.any():
            rows = (first + torch.arange(self._beams))[going].flatten()
            self._runner.reorder(rows, (first + parents)[going].flatten())
        for group in active:
            group.step += 1
        return [group for group, is_done in zip(active, done.tolist(), strict=True) if is_done]

    def _candidates(
        self, active: list["ActiveGroup"]
    ) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"], Int[Tensor, "groups beams"]]:
        """Run the model; return the best next tokens of each row that was run, and the rows of each beam.

        In its first step, a group has one row.
        """
        beams, history = self._beams, self._state.history
        rows, requests, steps, rows_run = list[int](), list[Request](), list[int](), list[list[int]]()
        for group in active:
            count = beams if group.step else 1
            rows_run.append([len(rows) + min(beam, count - 1) for beam in range(beams)])
            rows += range(group.group * beams, group.group * beams + count)
            requests += [group.request] * count
            steps += [group.step] * count
        if all(steps):
            last = torch.cat([history[group.group, :, group.step - 1] for group in active])
            logits = self._runner.step(torch.tensor(rows), last)
        else:
            tokens = [
                [[int(token)] for token in history[group.group, :, group.step - 1]]
                if group.step
                else [list(group.request.prompt)]
                for group in active
            ]
            logits = self._runner.extend(rows, [row for group_tokens in tokens for row in group_tokens])
        normalizer = self._runner.log_sum_exp(logits)
        self._constraints.apply(logits, requests, steps)
        values, indices = self._runner.top_k(logits, min(2 * beams, logits.shape[1]))
        return values - normalizer[:, None], indices, torch.tensor(rows_run)

    def _hypotheses(self, group: int) -> list[Hypothesis]:
        return self._state.hypotheses(group, self._config.num_return_sequences)


@dataclass(eq=False)
class ActiveGroup:
    """A request in beam search."""

    index: int
    request: Request
    group: int
    step: int = 0
