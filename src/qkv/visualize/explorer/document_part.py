"""Documents in the payload: sentences and words with the weights of a hierarchical attention network."""

import math
from dataclasses import dataclass
from typing import Any

from qkv.interpret.document_probe import WeightedDocument
from qkv.pipelines.output import Answer

_DECIMALS = 6


@dataclass(frozen=True, kw_only=True)
class DocumentAnswer(Answer):
    """A document as an answer of the explorer: its text, its label and the log-probability of the label."""

    document: WeightedDocument


def document_answer(document: WeightedDocument) -> DocumentAnswer:
    """Return a document as an answer."""
    return DocumentAnswer(document.text, document.label, math.log(max(document.score, 1e-30)), document=document)


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
    """Return the probabilities of the other labels, and how much of the document was cut off."""
    others = list(answer.document.probabilities.items())[1:]
    truncated = answer.document.left_out
    notes = [f"{label} {probability:.3g}" for label, probability in others]
    return [*notes, *[f"{truncated} more sentence(s) truncated"] * bool(truncated)]
