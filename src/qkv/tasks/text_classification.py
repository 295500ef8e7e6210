"""Text classification task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.datasets.pair import Pair
from qkv.datasets.registry import LoadedData
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.nn.text_encoder import TextEncoder
from qkv.pipelines.classifier import encode_texts, label_log_probabilities
from qkv.pipelines.text_inputs import (
    IGNORE,
    AnyExampleEncoder,
    Example,
    TextBatch,
    build_example_encoder,
    collate,
    collate_padded,
    epoch_batches,
)
from qkv.runtime.text import printable
from qkv.tasks.task import ScoredTask, Settings, SplitScores
from qkv.tokenizers import Tokenizer
from qkv.types import Float, Tensor

MAX_LABEL = 40  # characters of a label in a message


@dataclass
class ClassificationTask(ScoredTask):
    """The loss is the cross-entropy of the labels."""

    title = "classification"
    cli_command = "classify"
    unit = "texts"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "accuracy": Metric("accuracy", percent=True),
    }
    model = TextEncoder
    learns_from = "labelled"
    from_data = ("vocabulary_size", "head", "labels", "label_names")
    capturable = True

    encoder: AnyExampleEncoder  # with a table of the training texts only
    train: list[Example]
    valid: list[Pair]
    labels: tuple[str, ...]
    settings: Settings
    max_length: int
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.tokenizer = self.encoder.tokenizer

    @classmethod
    def placeholder_sizes(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"vocabulary_size": 1, "head": "classifier", "labels": 1, "label_names": ()}

    @classmethod
    def sizes(cls, data: LoadedData, tokenizer: Tokenizer | None) -> dict[str, Any]:
        names = tuple(sorted({pair.target for pair in data.splits["train"]}))
        if len(names) < 2:
            label = printable(repr(names[0]), MAX_LABEL)
            raise InputError(f"all training texts have one label, {label}: at least two labels are required")
        return {
            "vocabulary_size": None if tokenizer is None else len(tokenizer),
            "head": "classifier",
            "labels": len(names),
            "label_names": names,
        }

    @classmethod
    def prepare(
        cls, data: LoadedData, tokenizer: Tokenizer | None, model: Any, train: Settings, seed: int
    ) -> "ClassificationTask":
        names = tuple(model.label_names)
        numbers = {name: number for number, name in enumerate(names)}
        encoder = build_example_encoder(tokenizer, model)
        texts = encode_texts(encoder, data.splits["train"], numbers, model.max_length)
        notes = data.notes
        if texts.too_long:
            notes += (
                f"{texts.too_long} training text(s) are truncated to model.max_length = {model.max_length} "
                f"{encoder.unit}",
            )
        valid = data.splits["valid"][: train.valid_size]
        for split in data.splits:
            notes += _unseen_labels(data, split, names)
        return cls(encoder, texts.examples, valid, names, train, model.max_length, seed, notes)

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
    def _max_batch(self) -> int:
        return self.encoder.max_batch(self.settings.batch_tokens)

    def loss(self, model: TextEncoder, batch: TextBatch) -> Float[Tensor, ""]:
        logits = model.predict(self.encoder.lookup(batch.token_ids), batch.lengths).float()
        smoothing = self.settings.label_smoothing
        loss = F.cross_entropy(logits, batch.targets, ignore_index=IGNORE, label_smoothing=smoothing, reduction="sum")
        return loss / (batch.targets != IGNORE).sum().clamp(min=1)

    def validate(self, model: TextEncoder) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: LoadedData) -> list[str]:
        return list(data.splits)

    def evaluate(self, model: TextEncoder, data: LoadedData, split: str) -> SplitScores:
        return SplitScores(len(data.splits[split]), "texts", self._scores(model, data.splits[split]))

    def notes_on(self, data: LoadedData, split: str) -> tuple[str, ...]:
        return _unseen_labels(data, split, self.labels)

    def _scores(self, model: TextEncoder, pairs: Sequence[Pair]) -> dict[str, float]:
        log_p = label_log_probabilities(model, self.encoder, pairs, max_tokens=self.settings.batch_tokens)
        return label_scores(log_p, pairs, self.labels)


def _unseen_labels(data: LoadedData, split: str, labels: Sequence[str]) -> tuple[str, ...]:
    """Note on labels missing from the training data: ignored in the loss, counted as errors in the accuracy."""
    unseen = sorted({pair.target for pair in data.splits[split]} - set(labels))
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
