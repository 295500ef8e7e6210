"""Beam search over a model's step function.

The beams of a row share the initial state, and finished rows are removed from the batch. The host waits for the device
once per step, to learn which rows are finished.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from qkv.attention.watch import begin_passes
from qkv.errors import InputError
from qkv.generation.back_pointers import BackPointers, Hypothesis
from qkv.generation.constraints import ConstraintState, DecodingConstraints
from qkv.generation.coverage import Coverage, track_coverage
from qkv.generation.search import State, StepModel
from qkv.nn.interfaces import select
from qkv.types import Float, Int, Tensor


@torch.inference_mode()
def beam_search(
    model: StepModel[State],
    state: State,
    constraints: DecodingConstraints,
    *,
    num_beams: int,
    length_penalty: float = 1.0,
    coverage: Coverage | None = None,
    exact: bool = False,
    observe: "Observe" = lambda candidates, kept: None,  # called with the candidates of each step, and those kept
) -> list[list[Hypothesis]]:
    """Return the `num_beams` best hypotheses of each row of the state, best first.

    A hypothesis of n tokens, the end token counted, scores log p / n ** length_penalty, plus its coverage penalty if
    `coverage` is given. A row is finished when it has `num_beams` finished hypotheses and no running one would score
    better than the worst of them if it ended now; with `exact`, if no continuation could score better.
    """
    if constraints.end is None:
        raise InputError("beam search requires an end token")
    constraint_state, back_pointers = ConstraintState(constraints, model.device), BackPointers()
    begin_passes(model)
    active = torch.arange(constraints.batch, device=model.device)  # the unfinished rows
    parents = active.repeat_interleave(num_beams)
    state = shared = select(state, parents)
    grammar_state = constraint_state.init_grammar(parents)
    token = torch.tensor(constraints.per_row("begin"), device=model.device)[parents]
    running = _first_scores(constraints.batch, num_beams, model.device)
    finished = FinishedHypotheses.empty(constraints.batch, num_beams, model.device)
    results: dict[int, list[End]] = {}
    with track_coverage(model, coverage) as tracker:
        for step in range(constraint_state.steps):
            back_pointers.add(token, parents)
            logits, state = model.step(token, state)
            row_ids = active.repeat_interleave(num_beams)
            penalty = tracker.step(row_ids)
            log_p = logits.float().log_softmax(dim=-1)
            log_p, grammar_state = constraint_state.step_grammar(log_p, token, grammar_state)
            candidates = expand(running, constraint_state.apply(log_p, step, row_ids))
            end_scores, end_rows = candidates.ended(constraints.end, num_beams)
            finished = finished.merge(end_scores / (step + 1) ** length_penalty + penalty[end_rows], step, end_rows)
            running, rows, tokens = kept = candidates.running(constraints.end, num_beams)
            observe(candidates, kept)
            if exact:  # upper bound: log p can only fall, the length grow to its maximum, and the coverage be complete
                bound = running / (constraint_state.max_lengths(active)[:, None] + 1) ** length_penalty
            else:
                bound = running / (step + 2) ** length_penalty + penalty[rows]
            done = (~(bound.amax(dim=1) > finished.scores[:, -1])).tolist()  # also if the scores are NaN
            if any(done):
                results |= (row for row, is_done in zip(finished.ends(active), done, strict=True) if is_done)
                if all(done):
                    break
                left = torch.tensor([row for row, is_done in enumerate(done) if not is_done], device=model.device)
                active, running, finished, rows, tokens = select((active, running, finished, rows, tokens), left)
                state, shared = select((state, shared), rows.flatten())
            else:
                state = select(state, rows.flatten(), shared=shared)
            parents, token = rows.flatten(), tokens.flatten()
            grammar_state = select(grammar_state, parents)
            tracker.reorder(parents)
    return hypotheses(back_pointers, [results[row] for row in range(constraints.batch)])


def _first_scores(rows: int, beam: int, device: torch.device) -> Float[Tensor, "rows beam"]:
    """Return the scores before the first step: all beams of a row are equal, so all but the first are disabled."""
    scores = torch.full((rows, beam), -torch.inf, device=device)
    scores[:, 0] = 0.0
    return scores


class Candidates(NamedTuple):
    """Best one-token extensions of the running hypotheses, best first."""

    scores: Float[Tensor, "rows candidates"]  # log p of the whole sequence
    rows: Int[Tensor, "rows candidates"]  # index of the extended hypothesis in the batch of hypotheses
    tokens: Int[Tensor, "rows candidates"]

    def ended(self, end: int, beam: int) -> tuple[Float[Tensor, "rows beam"], Int[Tensor, "rows beam"]]:
        """Return scores and rows of the `beam` best candidates, with -inf for those that do not end.

        A hypothesis ends only if the end token is among the `beam` best candidates.
        """
        return self.scores.masked_fill(self.tokens.ne(end), -torch.inf)[:, :beam], self.rows[:, :beam]

    def running(self, end: int, beam: int) -> "Candidates":
        """Return the `beam` best candidates that do not end."""
        scores, rank = self.scores.masked_fill(self.tokens.eq(end), -torch.inf).topk(beam)
        return Candidates(scores, self.rows.gather(1, rank), self.tokens.gather(1, rank))


Observe = Callable[[Candidates, Candidates], None]


def expand(running: Float[Tensor, "rows beam"], log_p: Float[Tensor, "hypotheses vocabulary"]) -> Candidates:
    """Return the 2 * beam best candidates of each row: at least `beam` of them do not end, so the beam stays full."""
    rows, beam = running.shape
    best, tokens = log_p.topk(min(2 * beam, log_p.shape[-1]))  # no more are needed from one hypothesis
    totals = (running.flatten()[:, None] + best).view(rows, -1)
    scores, indices = totals.topk(min(2 * beam, totals.shape[1]))
    first = torch.arange(rows, device=running.device)[:, None] * beam
    return Candidates(scores, first + indices // best.shape[1], tokens.view_as(totals).gather(1, indices))


End = tuple[float, int, int]  # of a finished hypothesis: its score, and its last step and row


@dataclass(frozen=True)
class FinishedHypotheses:
    """Scores and last steps and rows of the best finished hypotheses of each row."""

    scores: Float[Tensor, "rows beam"]  # best first; -inf for empty slots
    steps: Int[Tensor, "rows beam"]
    rows: Int[Tensor, "rows beam"]

    @classmethod
    def empty(cls, rows: int, beam: int, device: torch.device) -> "FinishedHypotheses":
        zeros = torch.zeros((rows, beam), dtype=torch.long, device=device)
        return cls(torch.full((rows, beam), -torch.inf, device=device), zeros, zeros)

    def merge(
        self, scores: Float[Tensor, "rows beam"], step: int, rows: Int[Tensor, "rows beam"]
    ) -> "FinishedHypotheses":
        """Return the best of these hypotheses and of those that end at `step`."""
        best, rank = torch.cat((self.scores, scores), dim=1).topk(self.scores.shape[1])
        steps = torch.cat((self.steps, torch.full_like(rows, step)), dim=1)
        return FinishedHypotheses(best, steps.gather(1, rank), torch.cat((self.rows, rows), dim=1).gather(1, rank))

    def ends(self, row_ids: Int[Tensor, "rows"]) -> list[tuple[int, list[End]]]:
        """Return the id and the finished hypotheses of each row, without empty slots."""
        slots = zip(self.scores.tolist(), self.steps.tolist(), self.rows.tolist(), strict=True)
        ends = ([end for end in zip(*row, strict=True) if end[0] != -torch.inf] for row in slots)
        return list(zip(row_ids.tolist(), ends, strict=True))


def hypotheses(back_pointers: BackPointers, ends: list[list[End]]) -> list[list[Hypothesis]]:
    """Return the hypotheses of each row, traced back from their ends."""
    paths = back_pointers.trace([(step, row) for row_ends in ends for _, step, row in row_ends])
    return [
        [Hypothesis(path, score, rows) for (score, _, _), (path, rows) in zip(row_ends, paths, strict=False)]
        for row_ends in ends
    ]
