"""What a text encoder predicts, with probabilities: the label of a text, tags, masked tokens or answer spans."""

from collections.abc import Sequence
from typing import Any

from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.output import Candidate, Prediction
from qkv.pipelines.question_answerer import ExtractedAnswer
from qkv.tokenizers import Tokenizer
from qkv.types import Float, Tensor

CANDIDATES = 10  # kept of each prediction
NO_ANSWER = "[no answer]"


def rank_labels(part: str, labels: Sequence[str], logits: Float[Tensor, "labels"]) -> Prediction:
    """Return the most probable labels of an input or of a part of it."""
    best = logits.float().softmax(dim=-1).topk(min(CANDIDATES, len(labels)))
    names = (labels[index] for index in best.indices.tolist())
    return Prediction(part, tuple(map(Candidate, names, best.values.tolist())))


def predict_label(model: TextEncoder, hidden: Float[Tensor, "1 length dim"]) -> tuple[Prediction, ...]:
    """Return the prediction of a classifier."""
    return (rank_labels("", model.labels, model.logits(hidden)[0]),)


def predict_tags(
    model: TextEncoder, hidden: Float[Tensor, "1 length dim"], words: Sequence[tuple[str, int]]
) -> tuple[Prediction, ...]:
    """Return the tags of words, given the position of the first token of each."""
    logits = model.logits(hidden)[0]
    return tuple(rank_labels(word, model.labels, logits[position]) for word, position in words)


def predict_masked(
    model: Any, tokenizer: Tokenizer, hidden: Float[Tensor, "1 length dim"], masks: Sequence[tuple[str, int]]
) -> tuple[Prediction, ...]:
    """Return the tokens predicted for masks, given their positions."""
    predictions = []
    for name, position in masks:
        # The model may have more outputs than the tokenizer has tokens; the rest are never predicted.
        probabilities = model.mlm_logits(hidden[0, position]).float().softmax(dim=-1)[: len(tokenizer)]
        best = probabilities.topk(min(CANDIDATES, len(probabilities)))
        tokens = (tokenizer.decode([token], skip_special_tokens=False) for token in best.indices.tolist())
        predictions.append(Prediction(name, tuple(map(Candidate, tokens, best.values.tolist()))))
    return tuple(predictions)


def rank_answers(answer: ExtractedAnswer) -> Prediction:
    """Return the candidate answers to a question, including that there is none."""
    candidates = [Candidate(span.text, span.probability) for span in answer.candidates]
    candidates.append(Candidate(NO_ANSWER, answer.no_answer))
    return Prediction("", tuple(sorted(candidates, key=lambda candidate: -candidate.probability)))
