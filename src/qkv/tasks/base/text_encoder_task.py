"""Base class of tasks that predict labels with a text encoder."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch.nn import functional as F

from qkv.config import Rate
from qkv.datasets.batching import BatchSize, shuffled_batches
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.inputs.text_inputs import (
    IGNORE,
    AnyExampleEncoder,
    Example,
    TextBatch,
    build_example_encoder,
    collate,
    collate_padded,
)
from qkv.pipelines.tagger import label_logits
from qkv.tasks.base.task import ACCURACY, LOSS, Task, TaskConfig
from qkv.tokenizers import Tokenizer
from qkv.types import Float, Tensor


class TextEncoderConfig(TaskConfig):
    """Options of the task."""

    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy


class TextEncoderTask(Task):
    """The loss is the cross-entropy of the labels of texts or of their words."""

    metrics: ClassVar = {"loss": LOSS, "accuracy": ACCURACY}
    model = TextEncoder
    config_class = TextEncoderConfig
    from_data = ("vocab_size", "labels", "label_names")
    capturable = True

    @classmethod
    @abstractmethod
    def label_names(cls, examples: Any) -> set[str]:
        """The labels of the training examples."""

    @abstractmethod
    def encode(self, examples: Any) -> list[Example]:
        """Encode the training examples with `self.encoder`."""

    @classmethod
    def sizes(cls, data: Any, tokenizer: Tokenizer | None) -> dict[str, Any]:
        names = tuple(sorted(cls.label_names(data.splits["train"])))
        vocab = {} if tokenizer is None else {"vocab_size": len(tokenizer)}  # models of characters have no tokenizer
        return {**vocab, "labels": len(names), "label_names": names}

    def setup(self, data: Any) -> None:
        self.encoder = build_example_encoder(
            self.tokenizer, self.model_config
        )  # with a table of the training texts only
        self.tokenizer = self.encoder.tokenizer
        self.max_length: int = self.model_config.max_length
        self.labels = {name: number for number, name in enumerate(self.model_config.label_names)}
        self.train = self.encode(data.splits["train"])
        self.valid = data.splits["valid"][: self.train_config.valid_size]

    @property
    def batch_size(self) -> BatchSize:
        """Size of a batch in the units of the examples' lengths."""
        return self.encoder.max_batch(self.train_config.batching)

    def epoch(self, number: int) -> list[list[int]]:
        lengths = [len(example.ids) for example in self.train]
        return shuffled_batches(lengths, self.batch_size, self.seed, number)

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> TextBatch:
        examples = [self.train[row] for row in rows]
        if padded_to_shape:
            return collate_padded(examples, self.encoder.pad, self.batch_size, self.max_length)
        return collate(examples, self.encoder.pad)

    def loss(self, model: TextEncoder, batch: TextBatch) -> Float[Tensor, ""]:
        count = (batch.targets != IGNORE).sum().clamp(min=1)  # a tensor, so that CUDA graphs recompute it
        return total_loss(model, self.encoder, batch, self.options.label_smoothing) / count


def total_loss(
    model: TextEncoder, encoder: AnyExampleEncoder, batch: TextBatch, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Cross-entropy of all labels of a batch, summed."""
    logits = label_logits(model, encoder, batch).float().flatten(0, -2)
    targets = batch.targets.flatten()
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, label_smoothing=smoothing, reduction="sum")
