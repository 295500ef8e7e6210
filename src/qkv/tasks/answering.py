"""Answering as a task to learn: where in a text the answer to a question stands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from qkv.config import require
from qkv.data.batching import round_up, shuffled_batches
from qkv.data.questions import Question
from qkv.data.registry import LoadedData
from qkv.metrics import Metric
from qkv.metrics.answers import answer_f1, exact_answers
from qkv.models.bert import Bert
from qkv.tasks.pieces import Splitter
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.tasks.windows import Window, WindowBatch, batched, find, log_probabilities, mean_loss, windows_of
from qkv.types import Float, Tensor


@dataclass
class AnsweringTask(ScoredTask):
    """The loss is the cross-entropy of the first and the last token of the answer (Devlin et al. 2019)."""

    title = "answering questions"
    command = "answer"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "exact": Metric("exact match", percent=True),
        "f1": Metric("F1", percent=True),
    }
    model = Bert
    learns_from = "questions"
    from_data = ("vocabulary_size", "head")
    capturable = True

    vocabulary: Any
    train: list[Window]
    valid: list[Question]
    questions: int  # how many there are to learn from
    settings: Settings
    longest: int
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.splitter = Splitter(self.vocabulary)

    @classmethod
    def provisional(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"vocabulary_size": 1, "head": "span"}

    @classmethod
    def sizes(cls, data: LoadedData, vocabulary: Any) -> dict[str, Any]:
        return {"vocabulary_size": len(vocabulary), "head": "span"}

    @classmethod
    def prepare(cls, data: LoadedData, vocabulary: Any, model: Any, train: Settings, seed: int) -> "AnsweringTask":
        require(not train.label_smoothing, "train.label_smoothing is for labels; the places of an answer are none")
        questions = data.questions["train"]
        windows = windows_of(Splitter(vocabulary), questions, model.max_length)
        valid = data.questions["valid"][: train.valid_size]
        return cls(vocabulary, windows, valid, len(questions), train, model.max_length, seed, data.notes)

    def describe(self) -> str:
        return f"{self.questions:,} questions, {len(self.train):,} windows"

    def epoch(self, number: int) -> list[list[int]]:
        return shuffled_batches([len(one.ids) for one in self.train], self.settings.batch_tokens, self.seed, number)

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> WindowBatch:
        windows = [self.train[row] for row in rows]
        if not filled:
            return batched(windows, self.splitter.pad)
        width = min(round_up(max(len(one.ids) for one in windows)), self.longest)
        return batched(windows, self.splitter.pad, self.settings.batch_tokens // width, width)

    def loss(self, model: Bert, batch: WindowBatch) -> Float[Tensor, ""]:
        return mean_loss(log_probabilities(model, batch), batch.targets)

    def validate(self, model: Bert) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: LoadedData) -> list[str]:
        return list(data.questions)

    def examine(self, model: Bert, data: LoadedData, split: str) -> Examined:
        return Examined(len(data.questions[split]), "questions", self._scores(model, data.questions[split]))

    def _scores(self, model: Bert, questions: Sequence[Question]) -> dict[str, float]:
        windows = windows_of(self.splitter, questions, self.longest)
        found = find(model, windows, self.splitter.pad, self.settings.batch_tokens)
        said = [one.answer and one.answer.passage for one in found]
        texts = [
            "" if passage is None else question.text[passage.begin : passage.end]
            for question, passage in zip(questions, said, strict=True)
        ]
        right = [question.answer_texts for question in questions]
        return {
            "loss": sum(one.loss for one in found) / max(1, len(windows)),
            "exact": exact_answers(texts, right),
            "f1": answer_f1(texts, right),
        }
