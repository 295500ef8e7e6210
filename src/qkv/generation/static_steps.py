"""Decoding steps of fixed shape, for devices that run ahead of the host.

All rows take part in every step, and the state of the search is on the device: a step reads nothing back, so that a
CUDA graph can record and replay it. Every few steps the host looks which requests are finished and gives their rows to
the next ones, as in `continuous_batching`. Until then finished rows go on, but their results stay the same.

`plan[slot, t]` is the constraint on new token t of a request, and then that token itself.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from qkv.generation.back_pointers import Hypothesis
from qkv.generation.beam_batching import ActiveGroup, BeamDecoder, Beams
from qkv.generation.continuous_batching import ActiveRow, TokenDecoder
from qkv.generation.decode import GenerationConfig
from qkv.generation.requests import Request, Tokens, require_end
from qkv.generation.runner import Runner
from qkv.types import Float, Int, Tensor

FREE, NOT_END = -1, -2  # in a plan: any token, any token but the end token; other values are forced tokens
STEPS_AT_ONCE = 8  # of sequences that can end at any step, before the host looks
MOST_STEPS_AT_ONCE = 64  # of sequences of fixed length
BEAM_STEPS_AT_ONCE = 4
Step = Callable[[], None]


class StaticSteps(ABC):
    """State of the search for a number of slots, one request each, and the step that advances all of them."""

    def __init__(self, runner: Runner, tokens: Tokens, slots: int, length: int) -> None:
        self.runner, self.end, device = runner, tokens.end, runner.device
        self.slots, self.width = slots, runner.rows // slots  # rows of a slot
        self.plan = torch.full((slots, length + 2), FREE, dtype=torch.int32, device=device)
        self.steps = torch.zeros(slots, dtype=torch.long, device=device)  # new tokens
        self.limits = torch.zeros(slots, dtype=torch.long, device=device)  # most of them, the end token counted
        self.active = torch.zeros(slots, dtype=torch.bool, device=device)
        self.token = torch.zeros(runner.rows, dtype=torch.int32, device=device)  # last token of each row
        self.blocked = _blocked(tokens, runner.vocab_size, device)
        self._step: Step = self.step

    def record(self, recorder: Callable[[Step, torch.device], Step]) -> None:
        """Replace the step by a recording of it."""
        with torch.inference_mode():
            self._step = recorder(self.step, self.runner.device)

    def run(self, count: int) -> None:
        """Run steps."""
        for _ in range(count):
            self._step()

    @abstractmethod
    def step(self) -> None:
        """Decode one token of every row."""

    def load(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        """Give slots, whose rows are empty, to requests."""
        device = self.plan.device
        index = torch.tensor(slots, device=device)
        plans = torch.tensor([self._plan(request) for request in requests], dtype=torch.int32)
        self.plan[index] = plans.to(device)
        self.limits[index] = torch.tensor([self.limit(request) for request in requests], device=device)
        self.steps[index] = 0
        self.active[index] = True
        last = torch.tensor([request.prompt[-1] for request in requests], dtype=torch.int32, device=device)
        rows = index[:, None] * self.width + torch.arange(self.width, device=device)
        self.token[rows] = last[:, None]
        if any(len(request.prompt) > 1 for request in requests):
            self.runner.prefill([slot * self.width for slot in slots], [request.prompt[:-1] for request in requests])
            if self.width > 1:
                others = rows[:, 1:].flatten()
                self.runner.reorder(others, others // self.width * self.width)

    def limit(self, request: Request) -> int:
        """Return the most new tokens of a request, the end token counted."""
        return request.max_new_tokens + (self.end is not None)

    def _plan(self, request: Request) -> list[int]:
        plan = [FREE] * self.plan.shape[1]
        if self.end is not None:
            plan[: request.min_new_tokens] = [NOT_END] * request.min_new_tokens
            plan[request.max_new_tokens :] = [self.end] * (len(plan) - request.max_new_tokens)
        plan[: len(request.prefix)] = request.prefix
        return plan

    def constrain(
        self, logits: Float[Tensor, "rows vocabulary"], constraints: Int[Tensor, "rows"]
    ) -> Float[Tensor, "rows"]:
        """Set the logits of tokens that may not follow to -inf, in place; return the logits of forced tokens.

        Rows with a forced token are not changed otherwise.
        """
        forced = logits.gather(1, constraints.clamp(min=0).long()[:, None])[:, 0]
        if self.blocked is not None:
            logits.masked_fill_(self.blocked, -torch.inf)
        if self.end is not None:
            logits[:, self.end].masked_fill_(constraints == NOT_END, -torch.inf)
        return forced


def _blocked(tokens: Tokens, vocab_size: int, device: torch.device) -> Tensor | None:
    """Return a mask of the tokens that are never generated, or None without such tokens."""
    blocked = torch.zeros(vocab_size, dtype=torch.bool)
    blocked[torch.tensor(tokens.suppressed, dtype=torch.long)] = True
    if tokens.vocab_size is not None:
        blocked[tokens.vocab_size :] = True
    return blocked.to(device) if blocked.any() else None


class TokenSteps(StaticSteps):
    """Greedy search and sampling: one row per slot."""

    def __init__(
        self, runner: Runner, tokens: Tokens, config: GenerationConfig, length: int, slots: int | None = None
    ) -> None:
        super().__init__(runner, tokens, slots or runner.rows, length)
        sampling = config.sampling
        self._sampling = None if sampling is None or sampling.temperature == 0 else sampling
        self.totals = torch.zeros(self.slots, dtype=torch.double, device=runner.device)  # log p of the new tokens
        steps = 0 if self._sampling is None else length + 2
        self.uniform = torch.zeros((self.slots, steps), dtype=torch.double, device=runner.device)  # random numbers

    def load(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        super().load(slots, requests)
        self.totals[torch.tensor(slots, device=self.totals.device)] = 0.0

    def set_random(self, rows: Sequence[int], uniform: Sequence[Float[Tensor, "_"]]) -> None:
        """Set the random numbers of rows."""
        padded = torch.zeros(len(rows), self.uniform.shape[1], dtype=torch.double)
        for row, numbers in zip(padded, uniform, strict=True):
            row[: len(numbers)] = numbers
        self.uniform[torch.tensor(rows, device=self.uniform.device)] = padded.to(self.uniform.device)

    def choose(
        self, logits: Float[Tensor, "rows vocabulary"], at: Int[Tensor, "slots steps"]
    ) -> tuple[Int[Tensor, "slots steps"], Float[Tensor, "slots steps"]]:
        """Choose the new tokens number `at` of each slot; return them and their log-probabilities."""
        constraints = self.plan.gather(1, at).flatten()
        normalizer = self.runner.log_sum_exp(logits)
        forced_value = self.constrain(logits, constraints)
        if self._sampling is None:
            chosen = self.runner.top_k(logits, 1)[1][:, 0]
        else:
            uniform = self.uniform.gather(1, at).flatten()
            chosen = self.runner.sample(logits - normalizer[:, None], self._sampling, uniform)
        forced = constraints >= 0
        value = torch.where(forced, forced_value, logits.gather(1, chosen[:, None])[:, 0])
        token = torch.where(forced, constraints, chosen.int())
        return token.view(at.shape), (value - normalizer).view(at.shape)

    def step(self) -> None:
        at = self.steps[:, None]
        token, log_p = self.choose(self.runner.step_all(self.token), at)
        self.plan.scatter_(1, at, token)  # behind the result of a finished row
        self.token.copy_(token[:, 0])
        self.totals.add_(torch.where(self.active, log_p[:, 0], 0.0))
        self.steps.add_(self.active)
        self.active.logical_and_(self.steps < self.limits)
        if self.end is not None:
            self.active.logical_and_(token[:, 0] != self.end)


class BeamSteps(StaticSteps):
    """Beam search: `num_beams` rows per slot."""

    def __init__(self, runner: Runner, tokens: Tokens, config: GenerationConfig, length: int) -> None:
        require_end(tokens)
        groups = runner.rows // config.num_beams
        super().__init__(runner, tokens, groups, length)
        self._config = config
        self.beams = Beams.empty(groups, config.num_beams, length + 2, runner.device)
        self._rows = torch.arange(runner.rows, device=runner.device)

    def step(self) -> None:
        assert self.end is not None
        groups, beams = self.beams.running.shape
        logits = self.runner.step_all(self.token)
        at = self.steps[:, None]
        constraints = self.plan.gather(1, at).expand(-1, beams).flatten()
        normalizer = self.runner.log_sum_exp(logits)
        forced_value = self.constrain(logits, constraints)
        values, indices = self.runner.top_k(logits, min(2 * beams, logits.shape[1]))
        forced = (constraints >= 0)[:, None]
        only = torch.full_like(values, -torch.inf)
        only[:, 0] = forced_value
        log_p = torch.where(forced, only, values) - normalizer[:, None]
        tokens = torch.where(forced, constraints[:, None].long(), indices)
        extended, parents, token, done = self.beams.extend(
            log_p.unflatten(0, (groups, beams)),
            tokens.unflatten(0, (groups, beams)),
            at,
            self.limits[:, None],
            self.end,
            self._config,
        )
        for old, new in zip(self.beams.tensors, extended.tensors, strict=True):
            old.copy_(torch.where(self.active.view(-1, *[1] * (old.dim() - 1)), new, old))
        self.token.copy_(token.flatten())
        self.runner.reorder(self._rows, (self._rows.view(groups, beams)[:, :1] + parents).flatten())
        self.steps.add_(self.active)
        self.active.logical_and_(~done)


class StaticTokenDecoder(TokenDecoder):
    """Greedy search and sampling of the requests in a queue, several steps at once."""

    def __init__(
        self, steps: TokenSteps, queue: deque[tuple[int, Request]], tokens: Tokens, config: GenerationConfig
    ) -> None:
        super().__init__(steps.runner, queue, tokens, config, slots=steps.slots)
        self._steps = steps
        self._left = dict[int, int]()  # steps that each row can still take
        self._at_once = STEPS_AT_ONCE if tokens.end is not None else MOST_STEPS_AT_ONCE
        self._streams = False

    def stream(self) -> Iterator[int]:
        self._streams, self._at_once = True, STEPS_AT_ONCE
        return super().stream()

    def _admit(self, free: deque[int]) -> list[ActiveRow]:
        if is_too_early(len(free), self._steps.slots):
            return []
        admitted = super()._admit(free)
        if admitted:
            rows = [row.row for row in admitted]
            self._steps.load(rows, [row.request for row in admitted])
            if uniform := [row.uniform for row in admitted if row.uniform is not None]:
                self._steps.set_random(rows, uniform)
            self._left |= {row.row: self._steps.limit(row.request) for row in admitted}
        return admitted

    def _reset(self, slots: Sequence[int], sources: Sequence[int]) -> None:
        width = self._steps.width
        rows = [slot * width + row for slot in slots for row in range(width)]
        self._runner.reset(rows, [source for source in sources for _ in range(width)])

    def _step(self, active: list[ActiveRow]) -> list[ActiveRow]:
        count = min(self._at_once, *(self._left[row.row] for row in active))
        self._steps.run(count)
        for row in active:
            self._left[row.row] -= count
        is_active = self._steps.active.tolist()
        finished = [row for row in active if not is_active[row.row]]
        self._read(active if self._streams else finished)
        return finished

    def _read(self, active: list[ActiveRow]) -> None:
        """Copy the tokens and the log-probabilities of rows to the host."""
        if not active:
            return
        rows = torch.tensor([row.row for row in active], device=self._steps.plan.device)
        counts, totals = self._steps.steps[rows].tolist(), self._steps.totals[rows].tolist()
        plans = self._steps.plan[rows, : max(counts)].tolist()
        for row, plan, count, total in zip(active, plans, counts, totals, strict=True):
            row.tokens, row.total = plan[:count], total


class StaticBeamDecoder(BeamDecoder):
    """Beam search of the requests in a queue, several steps at once."""

    def __init__(
        self, steps: BeamSteps, queue: deque[tuple[int, Request]], tokens: Tokens, config: GenerationConfig
    ) -> None:
        self._steps = steps
        super().__init__(steps.runner, queue, tokens, config)
        self._results: dict[int, list[Hypothesis]] = {}  # of groups that are done

    def _empty_beams(self) -> Beams:
        return self._steps.beams

    def _admit(self, free: deque[int]) -> list[ActiveGroup]:
        if is_too_early(len(free), self._groups):
            return []
        admitted = super()._admit(free)
        if admitted:
            self._steps.load([group.group for group in admitted], [group.request for group in admitted])
        return admitted

    def _step(self, active: list[ActiveGroup]) -> list[ActiveGroup]:
        left = min(self._steps.limit(group.request) - group.step for group in active)
        count = min(BEAM_STEPS_AT_ONCE, left)
        self._steps.run(count)
        for group in active:
            group.step += count
        is_active = self._steps.active.tolist()
        done = [group for group in active if not is_active[group.group]]
        if done:
            groups = [group.group for group in done]
            beams = self._state.select(torch.tensor(groups, device=self._steps.plan.device)).cpu()
            count = self._config.num_return_sequences
            self._results = {group: beams.hypotheses(number, count) for number, group in enumerate(groups)}
        return done

    def _hypotheses(self, group: int) -> list[Hypothesis]:
        return self._results[group]


def is_too_early(free: int, slots: int) -> bool:
    """Return whether to wait for more free slots: it costs about as much to fill one as to fill an eighth of all."""
    return free < slots // 8
