"""Greedy and beam search, written once over a model's start and step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch.nn import functional as F

from qkv.attention.watch import begin_passes
from qkv.errors import InputError
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.nn.state import select
from qkv.types import Bool, Float, Int, Tensor

Memory = TypeVar("Memory")
State = TypeVar("State")


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that search found, without its end token."""

    tokens: tuple[int, ...]
    score: float  # log-probability, the end token included, divided by length ** length_penalty
    rows: tuple[int, ...] = field(default=(), compare=False)  # of the search, one a step, the end's too: `Record.along`


@torch.inference_mode()
def greedy_search(
    model: EncoderDecoder[Memory, State],
    memory: Memory,
    *,
    batch: int,
    begin: int,
    end: int,
    max_length: int | Int[Tensor, "batch"],
    length_penalty: float = 1.0,
    never: Sequence[int] = (),
) -> list[Hypothesis]:
    """Take the most probable token at every step; one hypothesis for each of the `batch` rows of the memory.

    A hypothesis has at most `max_length` tokens, a number for all rows or one for each; then it has to end.
    Tokens in `never` are not said, however probable.
    """
    limits = _limits(max_length, batch, model.device)
    begin_passes(model)
    state = model.start(memory)
    token = torch.full((batch,), begin, device=model.device)
    running = torch.ones(batch, dtype=torch.bool, device=model.device)
    total = torch.zeros(batch, device=model.device)
    written = []
    for length in range(1, int(limits.max()) + 2):
        logits, state = model.step(token, state)
        log_p = _log_p(logits, never)
        token = log_p.argmax(dim=-1).masked_fill((length > limits) | ~running, end)
        total += log_p.gather(1, token[:, None])[:, 0].masked_fill(~running, 0.0)
        written.append(token)
        running = running & (token != end)
        if not running.any():
            break
    tokens = torch.stack(written, dim=1)
    scores = total / (1 + (tokens != end).sum(dim=1)) ** length_penalty
    found = zip(tokens.tolist(), scores.tolist(), strict=True)
    return [_hypothesis(one, [row] * len(one), score, end) for row, (one, score) in enumerate(found)]


def _limits(max_length: int | Int[Tensor, "batch"], batch: int, device: torch.device) -> Int[Tensor, "batch"]:
    """The most tokens that each row may have."""
    limits = torch.as_tensor(max_length, device=device).expand(batch)
    if batch < 1 or int(limits.min()) < 0:
        raise InputError("a search needs a row at least, and room for no fewer than 0 tokens in each")
    return limits


def _log_p(logits: Float[Tensor, "rows vocabulary"], never: Sequence[int]) -> Float[Tensor, "rows vocabulary"]:
    """The log-probability of each next token, -inf for those that are never said."""
    log_p = logits.float().log_softmax(dim=-1)
    if never:
        log_p[:, list(never)] = -torch.inf
    return log_p


@torch.inference_mode()
def beam_search(
    model: EncoderDecoder[Memory, State],
    memory: Memory,
    *,
    batch: int,
    begin: int,
    end: int,
    max_length: int | Int[Tensor, "batch"],
    beam: int,
    length_penalty: float = 1.0,
    never: Sequence[int] = (),
    exact: bool = False,
) -> list[list[Hypothesis]]:
    """The `beam` best hypotheses found for each row of the memory, best first.

    A hypothesis of n tokens, the end token counted, scores log p / n ** length_penalty. A row is done when `beam`
    hypotheses have ended and the best that still runs would score no better than the worst of them if it ended now;
    with `exact`, if no way of going on could make it score better. A hypothesis of `max_length` tokens has to end.
    """
    if beam < 1:
        raise InputError(f"a beam holds one hypothesis at least, not {beam}")
    limits = _limits(max_length, batch, model.device)
    begin_passes(model)
    longest = int(limits.max())
    first_beam = torch.arange(batch, device=model.device)[:, None] * beam
    state = select(model.start(memory), torch.arange(batch, device=model.device).repeat_interleave(beam))
    tokens = torch.full((batch, beam, 1), begin, device=model.device)
    here = first_beam[:, :, None] + torch.arange(beam, device=model.device)[None, :, None]  # the row of each beam
    rows = here[:, :, :0]  # and those it has come through, one for each step
    # The beams of a row begin alike: all but one are switched off, or each would find the same hypotheses.
    running = torch.full((batch, beam), -torch.inf, device=model.device)
    running[:, 0] = 0.0
    ended = Ended.nothing(batch, beam, longest, end, model.device)
    done = torch.zeros(batch, dtype=torch.bool, device=model.device)
    for length in range(1, longest + 2):
        logits, state = model.step(tokens[:, :, -1].flatten(), state)
        rows = torch.cat((rows, here), dim=-1)
        log_p = running[:, :, None] + _log_p(logits, never).unflatten(0, (batch, beam))  # b beam v
        full = length > limits
        if full.any():
            ended = ended.joined_by(tokens[:, :, 1:], rows, log_p[:, :, end] / length**length_penalty, done | ~full)
            done = done | full
            if done.all():
                break
        # Of the 2 * beam best continuations at least `beam` do not end, so that the beam stays full.
        vocabulary = log_p.shape[-1]
        scores, choice = log_p.flatten(1).topk(min(2 * beam, beam * vocabulary))
        parent, token = choice // vocabulary, choice % vocabulary
        ends = token == end
        # A hypothesis ends only if that is one of the `beam` best things to do.
        now = scores[:, :beam].masked_fill(~ends[:, :beam], -torch.inf) / length**length_penalty
        ended = ended.joined_by(_pick(tokens, parent[:, :beam])[:, :, 1:], _pick(rows, parent[:, :beam]), now, done)
        running, rank = scores.masked_fill(ends, -torch.inf).topk(beam)
        parent, token = parent.gather(1, rank), token.gather(1, rank)
        tokens = torch.cat((_pick(tokens, parent), token[:, :, None]), dim=-1)
        rows = _pick(rows, parent)
        state = select(state, (first_beam + parent).flatten())
        # log p can only fall; dividing by the greatest length to come bounds what it can become.
        horizon = limits + 1 if exact and length_penalty > 0 else torch.full_like(limits, length + 1)
        done = done | (running[:, 0] / horizon**length_penalty <= ended.scores[:, -1])
        if done.all():
            break
    return ended.hypotheses(end)


def _pick(
    paths: Int[Tensor, "batch beam length"], beams: Int[Tensor, "batch picks"]
) -> Int[Tensor, "batch picks length"]:
    return paths.gather(1, beams[:, :, None].expand(-1, -1, paths.shape[-1]))


@dataclass(frozen=True)
class Ended:
    """The best hypotheses of each row that have ended so far."""

    tokens: Int[Tensor, "batch beam length"]  # filled up with end tokens
    rows: Int[Tensor, "batch beam length"]  # of the search at each step, as far as there are tokens and their end
    scores: Float[Tensor, "batch beam"]  # best first; -inf where nothing has ended yet

    @classmethod
    def nothing(cls, batch: int, beam: int, max_length: int, end: int, device: torch.device) -> "Ended":
        return cls(
            torch.full((batch, beam, max_length + 1), end, device=device),
            torch.zeros((batch, beam, max_length + 1), dtype=torch.long, device=device),
            torch.full((batch, beam), -torch.inf, device=device),
        )

    def joined_by(
        self,
        tokens: Int[Tensor, "batch beam length"],
        rows: Int[Tensor, "batch beam steps"],
        scores: Float[Tensor, "batch beam"],
        done: Bool[Tensor, "batch"],
    ) -> "Ended":
        """The best of these and of those that end now; rows that are done take no newcomers."""
        whole = self.tokens.shape[-1]
        end = self.tokens[:, :, -1:].expand(-1, -1, whole - tokens.shape[-1])  # the last place is always an end token
        tokens = torch.cat((self.tokens, torch.cat((tokens, end), dim=-1)), dim=1)
        rows = torch.cat((self.rows, F.pad(rows, (0, whole - rows.shape[-1]))), dim=1)
        scores = torch.cat((self.scores, scores.masked_fill(done[:, None], -torch.inf)), dim=1)
        best, rank = scores.topk(self.scores.shape[1])
        return Ended(_pick(tokens, rank), _pick(rows, rank), best)

    def hypotheses(self, end: int) -> list[list[Hypothesis]]:
        """As plain values, the places left out that nothing ever filled."""
        found = zip(self.tokens.tolist(), self.rows.tolist(), self.scores.tolist(), strict=True)
        return [[_hypothesis(*one, end) for one in zip(*row, strict=True) if one[-1] != -torch.inf] for row in found]


def _hypothesis(tokens: list[int], rows: list[int], score: float, end: int) -> Hypothesis:
    length = tokens.index(end)
    return Hypothesis(tuple(tokens[:length]), score, tuple(rows[: length + 1]))
