"""Extractive question answering: the span of a text that answers a question."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from qkv.config import require
from qkv.datasets.examples.squad import Question
from qkv.errors import InputError
from qkv.models.bert import Bert
from qkv.pipelines.inputs.text_inputs import ExampleEncoder, inference_batch_size
from qkv.pipelines.inputs.windows import (
    MAX_ANSWER_TOKENS,
    SpanPredictions,
    make_windows,
    max_question_tokens,
    predict_spans,
)
from qkv.pipelines.pipeline import TextPipeline, one_or_many
from qkv.runtime.notebook import Drawable, quoted


@dataclass(frozen=True)
class AnswerSpan:
    """A candidate answer: a span of the context."""

    text: str
    start: int  # index of its first character
    end: int  # index after its last character
    probability: float


@dataclass(frozen=True, repr=False)
class ExtractedAnswer(Drawable):
    """A question about a context with its candidate answers."""

    question: str
    context: str
    candidates: tuple[AnswerSpan, ...]  # most probable first
    no_answer: float  # probability that the context has no answer

    def __repr__(self) -> str:
        answer = quoted(self.text) if self.span is not None else "no answer"
        return f"ExtractedAnswer({answer}, score {self.score:.4f}, question {quoted(self.question)})"

    def table_row(self) -> tuple[str, str, str]:
        return self.question, self.text or "no answer", f"{self.score:.1%}"

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data, as `qkv answer --json` prints it; "text" is the context.

        The best spans are candidates even if "no answer" wins.
        """
        candidates = [
            {"text": span.text, "begin": span.start, "end": span.end, "probability": round(span.probability, 6)}
            for span in self.candidates
        ]
        return {
            "question": self.question,
            "text": self.context,
            "answer": None if self.span is None else candidates[0],
            "no_answer": round(self.no_answer, 6),
            "candidates": candidates,
        }

    @property
    def span(self) -> AnswerSpan | None:
        """The most probable candidate, or None if "no answer" is more probable."""
        return next((candidate for candidate in self.candidates[:1] if candidate.probability >= self.no_answer), None)

    @property
    def text(self) -> str:
        """The answer; empty if there is none."""
        return "" if self.span is None else self.span.text

    @property
    def score(self) -> float:
        """Probability of the answer, or of there being none."""
        return self.no_answer if self.span is None else self.span.probability


class QuestionAnswerer(TextPipeline):
    """A BERT with a span head: `QuestionAnswerer("folders/bert-squad")("Who sat?", "The cat sat on the mat.").text`.

    Long contexts are processed in overlapping windows, and the best span of all is the answer; questions are truncated
    to half of the model's maximum length.
    """

    task_description: ClassVar = "question answering"
    heads: ClassVar = ("span",)
    example_input: ClassVar = "The cat sat on the mat. Then it slept. Who sat on the mat?"
    model: Bert

    @one_or_many
    def __call__(
        self,
        questions: Sequence[str],
        context: str | Sequence[str],
        *,
        top_k: int = 1,
        max_answer_tokens: int = MAX_ANSWER_TOKENS,
        stride: int | None = None,
        batch_size: int | None = None,
    ) -> list[ExtractedAnswer]:
        """Answer one question about a context, or several about one context or a context each.

            answerer = qkv.QuestionAnswerer("folders/bert-squad")
            answerer(["Who sat?", "Where?"], "The cat sat on the mat.", top_k=3)[0].candidates

        Args:
            questions: A question, or several.
            context: The text with the answers, or a text for each question.
            top_k: Number of candidate answers for each question.
            max_answer_tokens: Maximum number of tokens of an answer.
            stride: Tokens between the starts of the windows of a long context; by default half of a window.
            batch_size: Number of windows processed at a time; by default as many as fit in memory.

        Returns:
            One `ExtractedAnswer` for each question, with `text`, `score` and `candidates`.
        """
        require(top_k >= 1, f"top_k must be at least 1, not {top_k}")
        require(max_answer_tokens >= 1, f"max_answer_tokens must be at least 1, not {max_answer_tokens}")
        require(stride is None or stride >= 1, f"stride must be at least 1, not {stride}")
        contexts = [context] * len(questions) if isinstance(context, str) else context
        require(
            len(contexts) == len(questions), f"{len(questions)} question(s) but {len(contexts)} contexts: pass one each"
        )
        pairs = [Question(*pair) for pair in zip(questions, contexts, strict=True)]
        for number, pair in enumerate(pairs, start=1):
            for what, text in (("question", pair.question), ("context", pair.text)):
                if not text.strip():
                    raise InputError(f"input {number}: the {what} is empty", field=what)
        windows = make_windows(ExampleEncoder(self.tokenizer), pairs, self.model.config.max_length, stride)
        predictions = predict_spans(
            self.model,
            windows,
            self.encoder.pad,
            inference_batch_size(batch_size),
            top_k=top_k,
            max_answer_tokens=max_answer_tokens,
        )
        return [_extracted(pair, spans) for pair, spans in zip(pairs, predictions, strict=True)]

    def truncated_questions(self, questions: Sequence[str]) -> list[int]:
        """The 1-based numbers of the questions that are truncated."""
        max_tokens = max_question_tokens(self.model.config.max_length)
        encoded = self.encoder.encode(questions)
        return [number for number, ids in enumerate(encoded, start=1) if len(ids) > max_tokens]


def _extracted(question: Question, predictions: SpanPredictions) -> ExtractedAnswer:
    candidates = (
        AnswerSpan(question.text[passage.begin : passage.end], passage.begin, passage.end, math.exp(log_p))
        for passage, log_p in predictions.best
    )
    return ExtractedAnswer(question.question, question.text, tuple(candidates), math.exp(predictions.no_answer))
