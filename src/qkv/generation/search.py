"""Greedy search, and any other search with one hypothesis at a time, over a model's step function.

Finished rows are removed from the batch to speed up the others; this affects memory and speed only. The host waits
for the device once per step, to learn which rows are finished.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from qkv.attention.watch import begin_passes
from qkv.generation.back_pointers import BackPointers, Hypothesis
from qkv.generation.constraints import ConstraintState, DecodingConstraints
from qkv.nn.interfaces import Decoder, LanguageModel, select
from qkv.types import Float, Int, Tensor

State = TypeVar("State")
StepModel = Decoder[Any, State] | LanguageModel[State]  # model with step(token, state) -> (logits, state)
Choose = Callable[[Float[Tensor, "rows vocabulary"], int, Int[Tensor, "rows"]], Int[Tensor, "rows"]]


def greedy_search(
    model: StepModel[State], state: State, constraints: DecodingConstraints, *, length_penalty: float = 1.0
) -> list[Hypothesis]:
    """Decode the most likely token at every step; return one hypothesis per row of the state.

    A hypothesis of n tokens, the end token counted, scores log p / n ** length_penalty.
    """
    return decode(
        model, state, constraints, lambda log_p, step, rows: log_p.argmax(dim=-1), length_penalty=length_penalty
    )


@torch.inference_mode()
def decode(
    model: StepModel[State],
    state: State,
    constraints: DecodingConstraints,
    choose: Choose,
    *,
    length_penalty: float = 1.0,
    copies: int = 1,
) -> list[Hypothesis]:
    """Decode `copies` hypotheses per row of the state, with the next tokens picked by `choose`.

    `choose` gets the log-probabilities (-inf for tokens that the constraints forbid), the step, and the indices of the
    hypotheses, counted row by row.
    """
    steps = decode_steps(model, state, constraints, choose, length_penalty=length_penalty, copies=copies)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            hypotheses: list[Hypothesis] = end.value
            return hypotheses


def decode_steps(
    model: StepModel[State],
    state: State,
    constraints: DecodingConstraints,
    choose: Choose,
    *,
    length_penalty: float = 1.0,
    copies: int = 1,
) -> Generator[Int[Tensor, "rows"], None, list[Hypothesis]]:
    """Yield the next token of each unfinished hypothesis, step by step, and return what `decode` returns.

    Each step must run in inference mode.
    """
    constraint_state = ConstraintState(constraints, model.device)
    back_pointers = BackPointers()
    begin_passes(model)
    active = torch.arange(constraints.batch * copies, device=model.device)  # the unfinished hypotheses
    parents = active
    if copies > 1:
        state = select(state, active // copies)
    token = torch.tensor(constraints.per_row("begin"), device=model.device)[active // copies]
    total = torch.zeros(len(active), device=model.device)
    grammar_state = constraint_state.init_grammar(active // copies)
    finished: dict[int, Finished] = {}
    for step in range(constraint_state.steps):
        back_pointers.add(token, parents)
        logits, state = model.step(token, state)
        log_p, grammar_state = constraint_state.step_grammar(logits.float().log_softmax(dim=-1), token, grammar_state)
        log_p = constraint_state.apply(log_p, step, active // copies)
        token = choose(log_p, step, active)
        yield token
        total = total + log_p.gather(1, token[:, None])[:, 0]
        stopped = constraint_state.is_finished(token, step, active // copies).tolist()
        if any(stopped):
            rows = zip(stopped, active.tolist(), total.tolist(), token.tolist(), strict=True)
            for row, (stops, index, log_probability, last) in enumerate(rows):
                if stops:
                    finished[index] = Finished(step, row, log_probability / (step + 1) ** length_penalty, last)
            if all(stopped):
                break
            parents = torch.tensor([row for row, stops in enumerate(stopped) if not stops], device=model.device)
            state, grammar_state, active, token, total = select((state, grammar_state, active, token, total), parents)
        else:
            parents = torch.arange(len(active), device=model.device)
    ends = [finished[index] for index in range(constraints.batch * copies)]
    paths = back_pointers.trace([(end.step, end.row) for end in ends])
    return [
        Hypothesis(tokens if constraints.end is not None else (*tokens, end.last), end.score, rows)
        for end, (tokens, rows) in zip(ends, paths, strict=True)
    ]


@dataclass(frozen=True)
class Finished:
    """Step and row at which a hypothesis ended, and its score."""

    step: int
    row: int
    score: float
    last: int  # last token: the end token, if there is one
