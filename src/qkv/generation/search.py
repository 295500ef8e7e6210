"""Greedy search, and any other that follows one hypothesis at a time, over a model's step and the state it carries.

A row that has ended leaves the batch, so that the others go on faster; nothing but the memory in use depends on it. The
host asks the device for one thing a step: which rows have ended.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from qkv.attention.watch import begin_passes
from qkv.generation.rules import Judge, Rules
from qkv.generation.trail import Hypothesis, Trail
from qkv.nn.encoder_decoder import Decoder
from qkv.nn.language_model import LanguageModel
from qkv.nn.state import select
from qkv.types import Float, Int, Tensor

State = TypeVar("State")
Speaker = Decoder[Any, State] | LanguageModel[State]  # what takes one token and gives the logits of the next
Choose = Callable[[Float[Tensor, "rows vocabulary"], int, Int[Tensor, "rows"]], Int[Tensor, "rows"]]


def greedy_search(
    model: Speaker[State], state: State, rules: Rules, *, length_penalty: float = 1.0
) -> list[Hypothesis]:
    """Take the most probable token at every step; one hypothesis for each row of the state.

    A hypothesis of n tokens, the end token counted, scores log p / n ** length_penalty.
    """
    return write(model, state, rules, lambda log_p, step, rows: log_p.argmax(dim=-1), length_penalty=length_penalty)


@torch.inference_mode()
def write(
    model: Speaker[State], state: State, rules: Rules, choose: Choose, *, length_penalty: float = 1.0, copies: int = 1
) -> list[Hypothesis]:
    """Let `choose` pick the next token of every hypothesis, of which each row of the state begins so many.

    It is given the log-probabilities, -inf for what the rules forbid, the number of the step, and which of all
    hypotheses, numbered row by row, these rows are.
    """
    judge = Judge(rules, model.device)
    trail = Trail()
    begin_passes(model)
    here = torch.arange(rules.batch * copies, device=model.device)  # the hypotheses that have not ended
    parents = here
    if copies > 1:
        state = select(state, here // copies)
    token = torch.tensor(rules.each("begin"), device=model.device)[here // copies]
    total = torch.zeros(len(here), device=model.device)
    ends: dict[int, Written] = {}
    for step in range(judge.steps):
        trail.add(token, parents)
        logits, state = model.step(token, state)
        log_p = judge.allowed(logits.float().log_softmax(dim=-1), step, here // copies)
        token = choose(log_p, step, here)
        total = total + log_p.gather(1, token[:, None])[:, 0]
        stopped = judge.stops(token, step, here // copies).tolist()
        if any(stopped):
            whole = zip(stopped, here.tolist(), total.tolist(), token.tolist(), strict=True)
            for row, (stops, number, log_probability, last) in enumerate(whole):
                if stops:
                    ends[number] = Written(step, row, log_probability / (step + 1) ** length_penalty, last)
            if all(stopped):
                break
            parents = torch.tensor([row for row, stops in enumerate(stopped) if not stops], device=model.device)
            state, here, token, total = select((state, here, token, total), parents)
        else:
            parents = torch.arange(len(here), device=model.device)
    found = [ends[number] for number in range(rules.batch * copies)]
    ways = trail.followed([(one.step, one.row) for one in found])
    return [
        Hypothesis(tokens if judge.end is not None else (*tokens, one.last), one.score, rows)
        for one, (tokens, rows) in zip(found, ways, strict=True)
    ]


@dataclass(frozen=True)
class Written:
    """Where a hypothesis ended."""

    step: int
    row: int
    score: float
    last: int  # the token that ended it: the end token, where there is one
