"""Explanations in the payload: scores of the units of an input, by method and output."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.interpret.explainable_images import ImagePrediction
from qkv.interpret.explanation import Explanation
from qkv.pipelines.output import Answer, Candidate, Prediction
from qkv.visualize.explorer.image_part import image_part
from qkv.visualize.explorer.packing import pack_matrix

_DECIMALS = 6


@dataclass(frozen=True, kw_only=True)
class ExplanationAnswer(Answer):
    """Explanations of one prediction by several methods, as an answer of the explorer."""

    explanations: tuple[Explanation, ...]


def explanation_answer(explanations: Sequence[Explanation], source: str) -> ExplanationAnswer:
    """Return explanations of the prediction for an input, a text or the path of an image, as an answer."""
    first = explanations[0]
    source = Path(source).name if isinstance(first.explained, ImagePrediction) else source
    outputs = tuple(map(Candidate, first.outputs, first.probabilities))
    predictions = (Prediction("", first.explained.labels or outputs),) if len(outputs) == 1 else ()
    return ExplanationAnswer(
        source, first.prediction, math.nan, predictions=predictions, explanations=tuple(explanations)
    )


def explanation_part(answer: ExplanationAnswer) -> dict[str, Any]:
    """Return the units, the outputs with their probabilities, and the scores [outputs, units] of each method."""
    first = answer.explanations[0]
    return {
        "unit": first.explained.unit,
        "units": first.units,
        "outputs": [
            [output, round(p, _DECIMALS)] for output, p in zip(first.outputs, first.probabilities, strict=True)
        ],
        "methods": [
            {
                "name": explanation.method.replace("_", " "),
                "scores": pack_matrix(explanation.all_scores),
                "faithfulness": _faithfulness(explanation),
            }
            for explanation in answer.explanations
        ],
    }


def explained_picture(answer: ExplanationAnswer, max_bytes: int) -> dict[str, Any] | None:
    """Return the image whose regions are the units; None for a text."""
    explained = answer.explanations[0].explained
    if not isinstance(explained, ImagePrediction):
        return None
    return {"kind": "explanation", "grid": explained.grid, **image_part(explained.pixels, max_bytes)}


def _faithfulness(explanation: Explanation) -> list[float] | None:
    """Return the AOPC of comprehensiveness and of sufficiency, averaged over the outputs, if they were measured."""
    if "faithfulness" not in vars(explanation):
        return None
    names = ("aopc_comprehensiveness", "aopc_sufficiency")
    return [
        round(float(np.mean([getattr(part, name) for part in explanation.faithfulness])), _DECIMALS) for name in names
    ]
