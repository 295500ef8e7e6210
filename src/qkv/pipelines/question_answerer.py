"""Extractive question answering: the span of a text that answers a question."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qkv.config import require
from qkv.datasets.batching import BatchSize
from qkv.datasets.squad import Question
from qkv.errors import InputError
from qkv.models.bert import Bert
from qkv.pipelines.text_pipeline import BATCH_TOKENS, TextPipeline
from qkv.pipelines.windows import MAX_ANSWER_TOKENS, SpanPredictions, make_windows, max_question_tokens, predict_spans


@dataclass(frozen=True)
class Candidate:
    """A candidate answer span."""

    text: str
    begin: int  # index of its first character
    end: int  # index after its last character
    probability: float


@dataclass(frozen=True)
class Answered:
    """A question about a text with its candidate answers."""

    question: str
    text: str
    candidates: tuple[Candidate, ...]  # most probable first
    no_answer: float  # probability that the text has no answer

    @property
    def answer(self) -> Candidate | None:
        """The most probable candidate, or None if "no answer" is more probable."""
        return next((candidate for candidate in self.candidates[:1] if candidate.probability >= self.no_answer), None)


class Answerer(TextPipeline):
    """A BERT with a span head: `Answerer("folders/bert-squad")("Who sat?", "The cat sat on the mat.").answer`.

    Long texts are processed in overlapping windows, and the best span of all is the answer; questions are truncated to
    half of the model's maximum length.
    """

    heads: ClassVar = ("span",)
    model: Bert

    def __call__(self, question: str, text: str, top: int = 1) -> Answered:
        """Answer one question."""
        return self.answer([Question(question, text)], top)[0]

    def answer(
        self,
        questions: Sequence[Question],
        top: int = 1,
        *,
        max_answer_tokens: int = MAX_ANSWER_TOKENS,
        stride: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[Answered]:
        """The `top` best spans of at most `max_answer_tokens` tokens per question; windows start `stride` apart."""
        require(top >= 1, f"top must be at least 1, not {top}")
        require(max_answer_tokens >= 1, f"max_answer_tokens must be at least 1, not {max_answer_tokens}")
        require(stride is None or stride >= 1, f"stride must be at least 1, not {stride}")
        for number, question in enumerate(questions, start=1):
            for what, words in (("question", question.question), ("text", question.text)):
                if not words.strip():
                    raise InputError(f"input {number}: the {what} is empty")
        windows = make_windows(self.encoder, questions, self.model.config.max_length, stride)
        predictions = predict_spans(
            self.model, windows, self.encoder.pad, BatchSize(batch_tokens), top=top, max_answer_tokens=max_answer_tokens
        )
        return [_answered(question, spans) for question, spans in zip(questions, predictions, strict=True)]

    def truncated_questions(self, questions: Sequence[Question]) -> list[int]:
        """The 1-based numbers of the questions that are truncated."""
        max_tokens = max_question_tokens(self.model.config.max_length)
        encoded = self.encoder.encode([question.question for question in questions])
        return [number for number, ids in enumerate(encoded, start=1) if len(ids) > max_tokens]


def _answered(question: Question, predictions: SpanPredictions) -> Answered:
    candidates = (
        Candidate(question.text[passage.begin : passage.end], passage.begin, passage.end, math.exp(log_p))
        for passage, log_p in predictions.best
    )
    return Answered(question.question, question.text, tuple(candidates), math.exp(predictions.no_answer))
