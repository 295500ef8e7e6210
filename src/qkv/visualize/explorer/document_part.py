"""Documents in the payload: sentences and words with the weights of a hierarchical attention network."""

import math
from dataclasses import dataclass
from typing import Any

from qkv.interpret.document_probe import WeightedDocument
from qkv.pipelines.output import Answer, Candidate, Prediction

_DECIMALS = 6


@dataclass(frozen=True, kw_only=True)
class DocumentAnswer(Answer):
    """A document as an answer of the explorer: its text and its label."""

    document: WeightedDocument


def document_answer(document: WeightedDocument) -> DocumentAnswer:
    """Return a document as an answer."""
    candidates = tuple(Candidate(*pair) for pair in document.probabilities.items())
    predictions = (Prediction("", candidates),)
    return DocumentAnswer(document.text, document.label, math.nan, predictions=predictions, document=document)


def document_part(answer: DocumentAnswer) -> dict[str, Any]:
    """Return the sentences: each has a weight, and words with their weights in the sentence."""
    sentences = [
        {
            "weight": round(sentence.weight, _DECIMALS),
            "words": sentence.pieces,
            "weights": [round(weight, _DECIMALS) for weight in sentence.weights.tolist()],
        }
        for sentence in answer.document.sentences
    ]
    return {"sentences": sentences}


def document_notes(answer: DocumentAnswer) -> list[str]:
    """Return how much of the document was cut off."""
    truncated = answer.document.left_out
    return [f"{truncated} more sentence(s) truncated"] * bool(truncated)
