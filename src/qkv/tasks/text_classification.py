"""Text classification task."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.config import Rate
from qkv.datasets.batching import BatchSize
from qkv.datasets.dataset import LabeledTextDataset
from qkv.datasets.pair import Pair
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.classifier import encode_texts, label_log_probabilities
from qkv.pipelines.text_inputs import (
    IGNORE,
    TextBatch,
    build_example_encoder,
    collate,
    collate_padded,
    epoch_batches,
)
from qkv.registry import register
from qkv.runtime.text import printable
from qkv.tasks.task import Task, TaskConfig, vocab_sizes
from qkv.tokenizers import Tokenizer
from qkv.types import Float, Tensor

MAX_LABEL = 40  # characters of a label in a message


class TextClassificationConfig(TaskConfig):
    """Options of the task."""

    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy


@register("task", "classify")
class TextClassificationTask(Task):
    """The loss is the cross-entropy of the labels."""

    title = "classification"
    cli_command = "classify"
    unit = "texts"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "accuracy": Metric("accuracy", percent=True),
    }
    model = TextEncoder
    datasets = (LabeledTextDataset,)
    config_class = TextClassificationConfig
    model_options: ClassVar = {"head": "classifier"}
    from_data = ("vocab_size", "labels", "label_names")
    evaluation_unit = "texts"
    capturable = True

    @classmethod
    def sizes(cls, data: LabeledTextDataset, tokenizer: Tokenizer | None) -> dict[str, Any]:
        names = tuple(sorted({pair.target for pair in data.splits["train"]}))
        if len(names) < 2:
            label = printable(repr(names[0]), MAX_LABEL)
            raise InputError(f"all training texts have one label, {label}: at least two labels are required")
        return {**vocab_sizes(tokenizer), "labels": len(names), "label_names": names}

    def setup(self, data: LabeledTextDataset) -> None:
        self.encoder = build_example_encoder(
            self.tokenizer, self.model_config
        )  # with a table of the training texts only
        self.tokenizer = self.encoder.tokenizer
        self.labels = tuple(self.model_config.label_names)
        self.max_length = self.model_config.max_length
        numbers = {name: number for number, name in enumerate(self.labels)}
        self.train, too_long = encode_texts(self.encoder, data.splits["train"], numbers, self.max_length)
        self.valid = data.splits["valid"][: self.train_config.valid_size]
        if too_long:
            self.notes += (
                f"{too_long} training text(s) are truncated to model.max_length = {self.max_length} "
                f"{self.encoder.unit}",
            )
        for split in data.splits:
            self.notes += self.notes_on(data, split)

    def describe(self) -> str:
        return f"{len(self.train):,} texts, {len(self.labels)} labels"

    def epoch(self, number: int) -> list[list[int]]:
        return epoch_batches(self.train, self._max_batch, self.seed, number)

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> TextBatch:
        examples = [self.train[row] for row in rows]
        if padded_to_shape:
            return collate_padded(examples, self.encoder.pad, self._max_batch, self.max_length)
        return collate(examples, self.encoder.pad)

    @property
    def _max_batch(self) -> BatchSize:
        return self.encoder.max_batch(self.train_config.batching)

    def loss(self, model: TextEncoder, batch: TextBatch) -> Float[Tensor, ""]:
        logits = model.predict(self.encoder.lookup(batch.token_ids), batch.lengths).float()
        smoothing = self.options.label_smoothing
        loss = F.cross_entropy(logits, batch.targets, ignore_index=IGNORE, label_smoothing=smoothing, reduction="sum")
        return loss / (batch.targets != IGNORE).sum().clamp(min=1)

    def score_examples(self, model: TextEncoder, examples: Sequence[Pair]) -> dict[str, float]:
        log_p = label_log_probabilities(model, self.encoder, examples, self.train_config.batching)
        return label_scores(log_p, examples, self.labels)

    def notes_on(self, data: LabeledTextDataset, split: str) -> tuple[str, ...]:
        """Note labels missing from the training data: ignored in the loss, counted as errors in the accuracy."""
        unseen = sorted({pair.target for pair in data.splits[split]} - set(self.labels))
        labels_shown = ", ".join(printable(label, MAX_LABEL) for label in unseen[:5])
        return (f"labels in {split} that no training text has: {labels_shown}",) if unseen else ()


def label_scores(
    log_p: Float[Tensor, "texts labels"], pairs: Sequence[Pair], labels: Sequence[str]
) -> dict[str, float]:
    """Accuracy and mean -log p of the true label; a label unknown to the model counts as an error."""
    numbers = {name: number for number, name in enumerate(labels)}
    targets = torch.tensor([numbers.get(pair.target, IGNORE) for pair in pairs])
    known = targets != IGNORE
    loss = -log_p[known].gather(1, targets[known, None]).mean()
    return {"loss": float(loss), "accuracy": float((log_p.argmax(dim=-1) == targets).double().mean())}
