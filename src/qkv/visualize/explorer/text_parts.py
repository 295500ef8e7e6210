"""Parts of the payload for predictions, for the next tokens of a language model, and for the operands of attention."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.interpret.attention_probe import MAX_OPERANDS, TextAnswer
from qkv.interpret.operator_record import MATRICES
from qkv.pipelines.output import Answer, Candidate
from qkv.visualize.explorer.packing import pack_matrix

_DECIMALS = 6  # of probabilities
_CANDIDATES = 10  # of a prediction


def generation_part(answer: TextAnswer) -> dict[str, Any] | None:
    """Return the distribution of the next token after each token; None if the model is not a language model."""
    if not answer.next_tokens or not answer.attention:
        return None
    steps = [
        {
            "candidates": pack_candidates(step.candidates),
            "probability": None if step.probability is None else round(step.probability, _DECIMALS),
            "rank": step.rank,
        }
        for step in answer.next_tokens
    ]
    return {"prompt": answer.prompt_tokens, "steps": steps}


def prediction_part(answer: Answer) -> list[dict[str, Any]]:
    """Return the most probable candidates of each prediction."""
    return [
        {"part": each.part, "candidates": pack_candidates(each.candidates[:_CANDIDATES])} for each in answer.predictions
    ]


def pack_candidates(candidates: Sequence[Candidate]) -> list[list[str | float]]:
    """Return pairs of a text and its probability."""
    return [[each.text, round(each.probability, _DECIMALS)] for each in candidates]


def operator_note(answer: Answer) -> str:
    """Return why a text has no operator view, or ""."""
    if not isinstance(answer, TextAnswer):
        return (
            "There is no Operator view: the vectors of queries, keys and values are recorded for text encoders and "
            "language models only."
        )
    if answer.operators:
        return ""
    queries, keys = max((each.shape[1:] for each in answer.attention), key=math.prod)
    if MATRICES * queries * keys > MAX_OPERANDS:
        return (
            f"There is no Operator view: of a text of {keys:,} tokens, a head has more than {MAX_OPERANDS:,} numbers, "
            "the limit of a page. A shorter text has the view."
        )
    return "There is no Operator view: the page has too many texts, or the model attends token by token."


def operator_part(answer: TextAnswer) -> list[dict[str, Any]]:
    """Return the operands and results of attention in the recorded heads, matrices as little-endian float32."""
    shapes = {each.layer: each.shape[1:] for each in answer.attention}
    heads = []
    for each in answer.operators:
        if shapes.get(each.layer) != each.scores.shape:  # the map has other tokens, e.g. those before a query
            continue
        values = each._asdict().items()
        heads.append({name: pack_matrix(value) if isinstance(value, np.ndarray) else value for name, value in values})
    return heads
