"""Beam search of many requests at once, over groups of rows; see `continuous_batching`."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from qkv.errors import InputError
from qkv.generation.back_pointers import Hypothesis
from qkv.generation.decode import GenerationConfig
from qkv.generation.requests import Constraints, Request, Result, Tokens, require_end
from qkv.generation.runner import Runner
from qkv.types import Bool, Float, Int, Tensor


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
        self,
        runner: Runner,
        queue: deque[tuple[int, Request]],
        tokens: Tokens,
        config: GenerationConfig,
        longest: int = 0,
    ) -> None:
        """Requests submitted later may have up to `longest` new tokens."""
        self._runner, self._queue, self._config = runner, queue, config
        self._constraints = Constraints(tokens)
        self._end = require_end(tokens)
        self._beams = config.num_beams
        self._groups = runner.rows // self._beams
        if self._groups < 1:
            raise InputError(f"num_beams {self._beams} exceeds the {runner.rows} rows of the batch")
        self._longest = max([longest, *(request.max_new_tokens for _, request in self._queue)])
        self._state = self._empty_beams()
        self._free = deque(range(self._groups))
        self.active: list[ActiveGroup] = []

    def _empty_beams(self) -> Beams:
        return Beams.empty(self._groups, self._beams, self._longest + 1, self._runner.device)

    def run(self) -> Iterator[Result]:
        """Yield the hypotheses of each request once its search has ended."""
        while self._queue or self.active:
            yield from self.advance()

    def submit(self, index: int, request: Request) -> None:
        """Append a request to the queue; it joins the batch as soon as a group of rows is free."""
        self._queue.append((index, request))

    def advance(self) -> list[Result]:
        """Give free rows to the next requests, extend all hypotheses, and return the results of ended searches."""
        with torch.inference_mode():
            self.active = sorted([*self.active, *self._admit(self._free)], key=lambda group: group.group)
            done = self._step(self.active) if self.active else []
            results = [(group.index, self._hypotheses(group.group)) for group in done]
        for group in done:
            self.remove(group)
        return results

    def remove(self, group: "ActiveGroup") -> None:
        """Give the rows of a request to the next one in the queue, whether its search has ended or not."""
        self.active.remove(group)
        self._free.append(group.group)

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
