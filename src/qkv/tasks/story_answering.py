"""Questions about stories (bAbI), answered by a memory network, or by a text encoder as a baseline.

An answer is one label, also if it is a list of words (Sukhbaatar et al. 2015). The mean error is a mean over tasks.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.datasets.batching import batch_by_length, shuffled_batches
from qkv.datasets.corpora.text.babi import TASKS
from qkv.datasets.dataset import StoryDataset
from qkv.datasets.examples.stories import StoryQuestion
from qkv.datasets.tensor_batch import NamedTensors
from qkv.metrics import Metric
from qkv.models.memory.memory_network import MemoryNetwork
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.classifier import encode_texts, label_log_probabilities
from qkv.pipelines.inputs.text_inputs import IGNORE, Example
from qkv.pipelines.story_answerer import EncodedStory, StoryEncoder, answer_logits
from qkv.registry import register
from qkv.tasks.base.evaluation import Evaluation
from qkv.tasks.base.example_task import ExampleTask
from qkv.tasks.base.task import LOSS, Sample, Task
from qkv.tasks.base.text_encoder_task import TextEncoderTask
from qkv.tokenizers import Tokenizer
from qkv.types import Float, Int, Tensor

ERROR = Metric("mean error of the tasks", higher_is_better=False, percent=True)


class StoryTask(Task):
    """Metrics of questions about stories: a subclass defines `log_probabilities`."""

    metrics: ClassVar = {"loss": LOSS, "error": ERROR}
    test_metrics: ClassVar = {
        f"error_{task}": Metric(f"error of task {task}", higher_is_better=False, percent=True)
        for task in range(1, TASKS + 1)
    }
    datasets = (StoryDataset,)
    evaluation_unit = "questions"
    unit = "questions"

    @property
    def label_index(self) -> dict[str, int]:
        """Index of each answer."""
        return {name: number for number, name in enumerate(self.model_config.label_names)}

    def log_probabilities(self, model: Any, questions: Sequence[StoryQuestion]) -> Float[Tensor, "questions labels"]:
        """Log-probability of each answer to each question."""
        raise NotImplementedError

    def score_examples(self, model: Any, examples: Sequence[StoryQuestion]) -> dict[str, float]:
        """Loss and mean error of the tasks."""
        return {name: value for name, value in self._scores(model, examples).items() if name in self.metrics}

    def evaluate(self, model: Any, data: StoryDataset, split: str) -> Evaluation:
        """All metrics on a split, with the error of each task."""
        examples = data.splits[split]
        return Evaluation(len(examples), self.evaluation_unit, self._scores(model, examples))

    def _scores(self, model: Any, examples: Sequence[StoryQuestion]) -> dict[str, float]:
        index = self.label_index
        targets = torch.tensor([index.get(example.answer, IGNORE) for example in examples])
        return story_scores(self.log_probabilities(model, examples), targets, [example.task for example in examples])

    def samples(self, model: Any, count: int) -> list[Sample]:
        examples, names = self.valid[:count], self.model_config.label_names
        answers = self.log_probabilities(model, examples).argmax(dim=-1).tolist()
        return [Sample(one.text, names[answer], one.answer) for one, answer in zip(examples, answers, strict=True)]


def story_scores(
    log_p: Float[Tensor, "questions labels"], targets: Int[Tensor, "questions"], tasks: Sequence[int]
) -> dict[str, float]:
    """Mean -log p of the answers, mean error of the tasks, and the error of each; unknown answers are errors."""
    known = targets != IGNORE
    wrong, numbers = (log_p.argmax(dim=-1) != targets).double(), torch.tensor(tasks)
    errors = {task: float(wrong[numbers == task].mean()) for task in sorted(set(tasks))}
    return {
        "loss": float(F.nll_loss(log_p[known], targets[known])),
        "error": sum(errors.values()) / len(errors),
        **{f"error_{task}": error for task, error in errors.items()},
    }


@register("task", "answer_story")
class StoryAnsweringTask(StoryTask, ExampleTask):
    """The loss is the cross-entropy of the answers."""

    title = "questions about stories"
    cli_command = "answer"
    model = MemoryNetwork
    from_data = ("vocab_size", "labels", "label_names")

    @classmethod
    def sizes(cls, data: StoryDataset, tokenizer: Tokenizer) -> dict[str, Any]:
        names = tuple(sorted({example.answer for example in data.splits["train"]}))
        return {"vocab_size": len(tokenizer), "labels": len(names), "label_names": names}

    def setup(self, data: StoryDataset) -> None:
        self.encoder = StoryEncoder(self.tokenizer, self.model_config.max_memories)
        self.train = self.encode(data.splits["train"])
        self.valid = data.splits["valid"][: self.train_config.valid_size]

    def encode(self, examples: Sequence[StoryQuestion]) -> list[EncodedStory]:
        index = self.label_index
        return self.encoder.encode(examples, [index.get(example.answer, IGNORE) for example in examples])

    def collate(self, examples: list[EncodedStory]) -> dict[str, Tensor]:
        return self.encoder.collate(examples).tensors

    def epoch(self, number: int) -> list[list[int]]:
        """Batches of stories of similar length."""
        lengths = [len(story.sentences) for story in self.train]
        return shuffled_batches(lengths, self.train_config.batching, self.seed, number)

    def loss(self, model: MemoryNetwork, batch: NamedTensors) -> Float[Tensor, ""]:
        return F.cross_entropy(answer_logits(model, batch).float(), batch["targets"])

    @torch.inference_mode()
    def log_probabilities(
        self, model: MemoryNetwork, questions: Sequence[StoryQuestion]
    ) -> Float[Tensor, "questions labels"]:
        stories = self.encode(questions)
        log_p = torch.zeros(len(stories), model.config.labels)
        for rows in batch_by_length([len(story.sentences) for story in stories], self.train_config.batching):
            batch = self.encoder.collate([stories[row] for row in rows]).to(model.device)
            log_p[rows] = answer_logits(model, batch).float().log_softmax(dim=-1).cpu()
        return log_p


@register("task", "classify_story")
class StoryClassificationTask(StoryTask, TextEncoderTask):
    """A text encoder classifies the question followed by the sentences, latest first, as one text.

    A story that is too long for the model loses its oldest sentences.
    """

    title = "classification of stories"
    cli_command = "classify"
    model_options: ClassVar = {"head": "classifier"}

    @classmethod
    def label_names(cls, examples: Sequence[StoryQuestion]) -> set[str]:
        return {example.answer for example in examples}

    def encode(self, examples: Sequence[StoryQuestion]) -> list[Example]:
        targets = [self.labels.get(example.answer, IGNORE) for example in examples]
        encoded, _ = encode_texts(self.encoder, [latest_first(one) for one in examples], self.max_length, targets)
        return encoded

    def describe(self) -> str:
        return f"{len(self.train):,} questions, {len(self.labels)} answers"

    def log_probabilities(
        self, model: TextEncoder, questions: Sequence[StoryQuestion]
    ) -> Float[Tensor, "questions labels"]:
        texts = [latest_first(question) for question in questions]
        return label_log_probabilities(model, self.encoder, texts, self.train_config.batching)


def latest_first(question: StoryQuestion) -> str:
    """Return the question, followed by the sentences of its story with the latest first."""
    return " ".join((question.question, *reversed(question.sentences)))
