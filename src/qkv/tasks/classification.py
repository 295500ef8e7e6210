"""Classification as a task to learn: a label for a whole text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.config import shown
from qkv.data.pair import Pair
from qkv.data.registry import Loaded
from qkv.errors import InputError
from qkv.metrics import Metric
from qkv.nn.text_encoder import TextEncoder
from qkv.tasks.pieces import (
    IGNORE,
    AnySplitter,
    Piece,
    TextBatch,
    batched,
    batched_filled,
    epoch_of,
    in_batches,
    splitter_for,
)
from qkv.tasks.task import Examined, ScoredTask, Settings
from qkv.types import Float, Tensor

SHOWN = 40  # characters of a label in a message


@dataclass(frozen=True)
class Cut:
    """Texts as a model reads them."""

    pieces: list[Piece]
    too_long: int  # how many of them are not read to their ends


def cut(splitter: AnySplitter, pairs: Sequence[Pair], labels: Mapping[str, int], longest: int) -> Cut:
    """Texts are cut off where they are too long; a label that is not known is not asked for."""
    room = splitter.room(longest)
    split = splitter.split([pair.source for pair in pairs])
    pieces = [
        Piece(splitter.between(ids[:room]), labels.get(pair.target, IGNORE))
        for pair, ids in zip(pairs, split, strict=True)
    ]
    return Cut(pieces, sum(len(ids) > room for ids in split))


@dataclass
class ClassificationTask(ScoredTask):
    """The loss is the cross-entropy of the labels."""

    title = "classification"
    command = "classify"
    unit = "texts"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "accuracy": Metric("accuracy", percent=True),
    }
    model = TextEncoder
    learns_from = "labelled"
    from_data = ("vocabulary_size", "head", "labels", "label_names")
    capturable = True

    splitter: AnySplitter  # that has met the training texts, and meets no others
    train: list[Piece]
    valid: list[Pair]
    labels: tuple[str, ...]
    settings: Settings
    longest: int
    seed: int
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.vocabulary = self.splitter.tokenizer

    @classmethod
    def provisional(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"vocabulary_size": 1, "head": "classifier", "labels": 1, "label_names": ()}

    @classmethod
    def sizes(cls, data: Loaded, vocabulary: Any) -> dict[str, Any]:
        names = tuple(sorted({pair.target for pair in data.splits["train"]}))
        if len(names) < 2:
            label = shown(repr(names[0]), SHOWN)
            raise InputError(f"all training texts have one label, {label}: give texts of two labels or more")
        return {"vocabulary_size": len(vocabulary), "head": "classifier", "labels": len(names), "label_names": names}

    @classmethod
    def prepare(cls, data: Loaded, vocabulary: Any, model: Any, train: Settings, seed: int) -> "ClassificationTask":
        names = tuple(model.label_names)
        numbers = {name: number for number, name in enumerate(names)}
        splitter = splitter_for(vocabulary, model)
        texts = cut(splitter, data.splits["train"], numbers, model.max_length)
        notes = data.notes
        if texts.too_long:
            notes += (
                f"{texts.too_long} training text(s) are read to model.max_length = {model.max_length} {splitter.unit} "
                "and no further",
            )
        valid = data.splits["valid"][: train.valid_size]
        for split in data.splits:
            notes += _strange_labels(data, split, names)
        return cls(splitter, texts.pieces, valid, names, train, model.max_length, seed, notes)

    def describe(self) -> str:
        return f"{len(self.train):,} texts, {len(self.labels)} labels"

    def epoch(self, number: int) -> list[list[int]]:
        return epoch_of(self.train, self._at_once, self.seed, number)

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> TextBatch:
        pieces = [self.train[row] for row in rows]
        if filled:
            return batched_filled(pieces, self.splitter.pad, self._at_once, self.longest)
        return batched(pieces, self.splitter.pad)

    @property
    def _at_once(self) -> int:
        return self.splitter.at_once(self.settings.batch_tokens)

    def loss(self, model: TextEncoder, batch: TextBatch) -> Float[Tensor, ""]:
        logits = model.predict(self.splitter.read(batch.tokens_read), batch.lengths).float()
        smoothing = self.settings.label_smoothing
        loss = F.cross_entropy(logits, batch.targets, ignore_index=IGNORE, label_smoothing=smoothing, reduction="sum")
        return loss / (batch.targets != IGNORE).sum().clamp(min=1)

    def validate(self, model: TextEncoder) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: Loaded) -> list[str]:
        return list(data.splits)

    def examine(self, model: TextEncoder, data: Loaded, split: str) -> Examined:
        return Examined(len(data.splits[split]), "texts", self._scores(model, data.splits[split]))

    def notes_on(self, data: Loaded, split: str) -> tuple[str, ...]:
        return _strange_labels(data, split, self.labels)

    def _scores(self, model: TextEncoder, pairs: Sequence[Pair]) -> dict[str, float]:
        log_p = label_log_probabilities(model, self.splitter, pairs, self.settings.batch_tokens)
        return label_scores(log_p, pairs, self.labels)


def _strange_labels(data: Loaded, split: str, labels: Sequence[str]) -> tuple[str, ...]:
    """A note on labels that a model cannot know; the loss leaves their texts out, and the accuracy counts them."""
    strange = sorted({pair.target for pair in data.splits[split]} - set(labels))
    labels_shown = ", ".join(shown(label, SHOWN) for label in strange[:5])
    return (f"labels in {split} that no training text has: {labels_shown}",) if strange else ()


def label_scores(
    log_p: Float[Tensor, "texts labels"], pairs: Sequence[Pair], labels: Sequence[str]
) -> dict[str, float]:
    """Accuracy and mean -log p of the right label; a label that the model does not know is never right."""
    numbers = {name: number for number, name in enumerate(labels)}
    wanted = torch.tensor([numbers.get(pair.target, IGNORE) for pair in pairs])
    known = wanted != IGNORE
    loss = -log_p[known].gather(1, wanted[known, None]).mean()
    return {"loss": float(loss), "accuracy": float((log_p.argmax(dim=-1) == wanted).double().mean())}


@torch.inference_mode()
def label_log_probabilities(
    model: TextEncoder, splitter: AnySplitter, pairs: Sequence[Pair], budget: int
) -> Float[Tensor, "texts labels"]:
    """log p of each label, for each text."""
    splitter = splitter.anew()
    texts = cut(splitter, pairs, {}, model.config.max_length)
    found = torch.zeros(len(pairs), model.config.labels)
    for rows, batch in in_batches(texts.pieces, splitter.at_once(budget), splitter.pad):
        here = batch.to(model.device)
        found[rows] = model.predict(splitter.read(here.tokens_read), here.lengths).float().log_softmax(dim=-1).cpu()
    return found
