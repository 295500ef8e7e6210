"""Documents in the payload: sentences and words with the weights of a hierarchical attention network."""

import math
from dataclasses import dataclass
from typing import Any

from qkv.interpret.document_probe import WeightedDocument
from qkv.pipelines.output import Answer, Candidate, Prediction
from qkv.visualize.glyphs import ELLIPSIS

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
            "continues": sentence.continues,
        }
        for sentence in answer.document.sentences
    ]
    return {"sentences": sentences}


def document_notes(answer: DocumentAnswer) -> list[str]:
    """Return how many sentences were split, and how much of the document was cut off."""
    truncated, sentences = answer.document.left_out, answer.document.sentences
    split = sum(
        sentence.continues and not (index and sentences[index - 1].continues)
        for index, sentence in enumerate(sentences)
    )
    return [
        *[
            f"{split} sentence(s) longer than the model allows are split, as in training, and parts have weights of "
            f"their own: a part that ends in {ELLIPSIS} continues in the next one"
        ]
        * bool(split),
        *[f"{truncated} more sentence(s) truncated"] * bool(truncated),
    ]
