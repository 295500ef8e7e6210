"""Extractive question answering task: predict the answer span of a question in a text."""

from collections.abc import Sequence
from typing import ClassVar

from qkv.datasets.batching import round_up, shuffled_batches
from qkv.datasets.dataset import QuestionDataset
from qkv.datasets.examples.squad import Question
from qkv.metrics import Metric
from qkv.metrics.squad_metrics import answer_f1, exact_answers
from qkv.models.bert import Bert
from qkv.pipelines.inputs.text_inputs import ExampleEncoder
from qkv.pipelines.inputs.windows import (
    WindowBatch,
    collate,
    log_probabilities,
    make_windows,
    mean_loss,
    predict_spans,
)
from qkv.registry import register
from qkv.tasks.base.evaluation import Evaluation, Mistake, worst
from qkv.tasks.base.task import LOSS, Sample, Task
from qkv.types import Float, Tensor


@register("task", "answer")
class QuestionAnsweringTask(Task):
    """Cross-entropy of the first and the last token of the answer (Devlin et al. 2019)."""

    title = "question answering"
    cli_command = "answer"
    metrics: ClassVar = {
        "loss": LOSS,
        "exact": Metric("exact match", percent=True),
        "f1": Metric("F1", percent=True),
    }
    model = Bert
    datasets = (QuestionDataset,)
    model_options: ClassVar = {"head": "span"}
    from_data = ("vocab_size",)
    evaluation_unit = "questions"
    capturable = True

    def setup(self, data: QuestionDataset) -> None:
        self.encoder = ExampleEncoder(self.tokenizer)
        self.max_length = self.model_config.max_length
        self.questions = len(data.splits["train"])
        self.train = make_windows(self.encoder, data.splits["train"], self.max_length)
        self.valid = data.splits["valid"][: self.train_config.valid_size]

    def describe(self) -> str:
        return f"{self.questions:,} questions, {len(self.train):,} windows"

    def epoch(self, number: int) -> list[list[int]]:
        return shuffled_batches(
            [len(window.ids) for window in self.train], self.train_config.batching, self.seed, number
        )

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> WindowBatch:
        windows = [self.train[row] for row in rows]
        if not padded_to_shape:
            return collate(windows, self.encoder.pad)
        width = min(round_up(max(len(window.ids) for window in windows)), self.max_length)
        return collate(windows, self.encoder.pad, self.train_config.batching.rows(width), width)

    def loss(self, model: Bert, batch: WindowBatch) -> Float[Tensor, ""]:
        return mean_loss(log_probabilities(model, batch), batch.targets)

    def samples(self, model: Bert, count: int) -> list[Sample]:
        questions = self.valid[:count]
        texts, _ = self._answers(model, questions)
        answered = zip(questions, texts, strict=True)
        return [Sample(question.question, text, next(iter(question.answer_texts), "")) for question, text in answered]

    def _answers(self, model: Bert, questions: Sequence[Question]) -> tuple[list[str], float]:
        """Return the predicted answers, and the mean loss of the windows."""
        windows = make_windows(self.encoder, questions, self.max_length)
        predictions = predict_spans(model, windows, self.encoder.pad, self.train_config.batching)
        passages = [prediction.answer and prediction.answer.passage for prediction in predictions]
        texts = [
            "" if passage is None else question.text[passage.begin : passage.end]
            for question, passage in zip(questions, passages, strict=True)
        ]
        return texts, sum(prediction.loss for prediction in predictions) / max(1, len(windows))

    def score_examples(self, model: Bert, examples: Sequence[Question]) -> dict[str, float]:
        return _scores(*self._answers(model, examples), examples)

    def evaluate(self, model: Bert, data: QuestionDataset, split: str) -> Evaluation:
        """All metrics on a split, and the answers that differ most from the gold ones."""
        questions = data.splits[split]
        texts, loss = self._answers(model, questions)
        f1 = [answer_f1([text], [question.answer_texts]) for text, question in zip(texts, questions, strict=True)]
        wrong = (
            Mistake(question.question, text, " | ".join(dict.fromkeys(question.answer_texts)), score)
            for question, text, score in zip(questions, texts, f1, strict=True)
            if score < 1
        )
        scores = _scores(texts, loss, questions)
        return Evaluation(
            len(questions), self.evaluation_unit, scores,
            outputs=tuple(texts), mistakes=worst(wrong), mistake_score="F1 of the words",
        )  # fmt: skip


def _scores(texts: Sequence[str], loss: float, questions: Sequence[Question]) -> dict[str, float]:
    references = [question.answer_texts for question in questions]
    return {"loss": loss, "exact": exact_answers(texts, references), "f1": answer_f1(texts, references)}
