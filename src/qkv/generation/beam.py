"""Beam search, over a model's step and the state it carries.

The beams of a row share what their state began with, and a row that is done leaves the batch. The host asks the device
for one thing a step: which rows are done.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from qkv.attention.watch import begin_passes
from qkv.errors import InputError
from qkv.generation.coverage import Coverage, following
from qkv.generation.rules import MOST_HYPOTHESES, Judge, Rules
from qkv.generation.search import Speaker, State
from qkv.generation.trail import Hypothesis, Trail
from qkv.nn.state import select
from qkv.types import Float, Int, Tensor


@torch.inference_mode()
def beam_search(
    model: Speaker[State],
    state: State,
    rules: Rules,
    *,
    beam: int,
    length_penalty: float = 1.0,
    coverage: Coverage | None = None,
    exact: bool = False,
) -> list[list[Hypothesis]]:
    """The `beam` best hypotheses found for each row of the state, best first.

    A hypothesis of n tokens, the end token counted, scores log p / n ** length_penalty, plus its coverage penalty where
    one is asked for. A row is done when `beam` hypotheses have ended and none that still runs would score better than
    the worst of them if it ended now; with `exact`, if no way of going on could make it score better.
    """
    if not 1 <= beam <= MOST_HYPOTHESES:
        raise InputError(f"a beam holds between 1 and {MOST_HYPOTHESES:,} hypotheses, not {beam}")
    if rules.end is None:
        raise InputError("a beam search compares hypotheses that have ended: it needs an end token")
    if not 0 <= length_penalty < torch.inf:
        raise InputError(f"a length penalty is a finite number, 0 or more, not {length_penalty}")
    judge, trail = Judge(rules, model.device), Trail()
    begin_passes(model)
    here = torch.arange(rules.batch, device=model.device)  # the rows that are not done
    parents = here.repeat_interleave(beam)
    state = shared = select(state, parents)
    token = torch.tensor(rules.each("begin"), device=model.device)[parents]
    # The beams of a row begin alike: all but one are switched off, or each would find the same hypotheses.
    running = torch.full((rules.batch, beam), -torch.inf, device=model.device)
    running[:, 0] = 0.0
    ended = Ended.nothing(rules.batch, beam, model.device)
    found: dict[int, list[Place]] = {}
    with following(model, coverage) as reading:
        for step in range(judge.steps):
            trail.add(token, parents)
            logits, state = model.step(token, state)
            numbers = here.repeat_interleave(beam)
            penalty = reading.step(numbers)
            ways = ways_on(running, judge.allowed(logits.float().log_softmax(dim=-1), step, numbers))
            ends = ways.tokens.eq(rules.end)
            # A hypothesis ends only if that is one of the `beam` best things to do.
            now = ways.scores.masked_fill(~ends, -torch.inf)[:, :beam] / (step + 1) ** length_penalty
            ended = ended.joined_by(now + penalty[ways.rows[:, :beam]], step, ways.rows[:, :beam])
            running, rank = ways.scores.masked_fill(ends, -torch.inf).topk(beam)
            rows, words = ways.rows.gather(1, rank), ways.tokens.gather(1, rank)
            if exact:  # log p can only fall, while a greater length forgives the more, and all may yet be covered
                could_be = running / (judge.limits(here)[:, None] + 1) ** length_penalty
            else:
                could_be = running / (step + 2) ** length_penalty + penalty[rows]
            done = (~(could_be.amax(dim=1) > ended.scores[:, -1])).tolist()  # also where a model gives no numbers
            if any(done):
                found |= (one for one, leaves in zip(ended.places(here), done, strict=True) if leaves)
                if all(done):
                    break
                staying = torch.tensor([row for row, leaves in enumerate(done) if not leaves], device=model.device)
                here, running, ended, rows, words = select((here, running, ended, rows, words), staying)
                state, shared = select((state, shared), rows.flatten())
            else:
                state = select(state, rows.flatten(), shared=shared)
            parents, token = rows.flatten(), words.flatten()
            reading.go_on_from(parents)
    ways_back = trail.followed([place[1:] for number in range(rules.batch) for place in found[number]])
    return [
        [
            Hypothesis(tokens, score, rows)
            for (score, _, _), (tokens, rows) in zip(found[number], ways_back, strict=False)
        ]
        for number in range(rules.batch)
    ]


class Ways(NamedTuple):
    """Ways of going on, best first."""

    scores: Float[Tensor, "rows ways"]  # log p of all of it
    rows: Int[Tensor, "rows ways"]  # of the batch of hypotheses: which one goes on so
    tokens: Int[Tensor, "rows ways"]


def ways_on(running: Float[Tensor, "rows beam"], log_p: Float[Tensor, "hypotheses vocabulary"]) -> Ways:
    """The 2 * beam best ways on for each row: at least `beam` of them do not end, so that the beam stays full."""
    rows, beam = running.shape
    best, tokens = log_p.topk(min(2 * beam, log_p.shape[-1]))  # of one hypothesis no more are needed
    further = (running.flatten()[:, None] + best).view(rows, -1)
    scores, choice = further.topk(min(2 * beam, further.shape[1]))
    first = torch.arange(rows, device=running.device)[:, None] * beam
    return Ways(scores, first + choice // best.shape[1], tokens.view_as(further).gather(1, choice))


Place = tuple[float, int, int]  # of a hypothesis that has ended: its score, and step and row on the trail


@dataclass(frozen=True)
class Ended:
    """The best hypotheses of each row that have ended so far: their scores, and where they ended."""

    scores: Float[Tensor, "rows beam"]  # best first; -inf where nothing has ended yet
    steps: Int[Tensor, "rows beam"]
    rows: Int[Tensor, "rows beam"]

    @classmethod
    def nothing(cls, rows: int, beam: int, device: torch.device) -> "Ended":
        nowhere = torch.zeros((rows, beam), dtype=torch.long, device=device)
        return cls(torch.full((rows, beam), -torch.inf, device=device), nowhere, nowhere)

    def joined_by(self, scores: Float[Tensor, "rows beam"], step: int, rows: Int[Tensor, "rows beam"]) -> "Ended":
        """The best of these and of those that end at this step."""
        best, rank = torch.cat((self.scores, scores), dim=1).topk(self.scores.shape[1])
        steps = torch.cat((self.steps, torch.full_like(rows, step)), dim=1)
        return Ended(best, steps.gather(1, rank), torch.cat((self.rows, rows), dim=1).gather(1, rank))

    def places(self, numbers: Int[Tensor, "rows"]) -> list[tuple[int, list[Place]]]:
        """For each row its number and where its hypotheses ended, those left out that nothing ever filled."""
        whole = zip(self.scores.tolist(), self.steps.tolist(), self.rows.tolist(), strict=True)
        places = ([place for place in zip(*row, strict=True) if place[0] != -torch.inf] for row in whole)
        return list(zip(numbers.tolist(), places, strict=True))
