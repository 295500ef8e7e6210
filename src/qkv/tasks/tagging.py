"""Tagging task: a label per word, e.g. its part of speech or entity."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.config import Rate
from qkv.datasets.dataset import TaggedDataset
from qkv.datasets.tagged import Tagged
from qkv.metrics import Metric
from qkv.metrics.tag_metrics import are_entity_tags, entity_f1, tag_accuracy
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.tagger import EncodedSentences, encode_sentences, predict_tags, tag_logits
from qkv.pipelines.text_inputs import (
    IGNORE,
    AnyExampleEncoder,
    TextBatch,
    build_example_encoder,
    collate,
    collate_padded,
    epoch_batches,
    iter_batches,
)
from qkv.pipelines.tree_inputs import reads_trees, require_heads
from qkv.registry import register
from qkv.tasks.task import Task, TaskConfig, vocab_sizes
from qkv.tokenizers import Tokenizer
from qkv.types import Float, Tensor


class TaggingConfig(TaskConfig):
    """Options of the task."""

    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy


@register("task", "tag")
class TaggingTask(Task):
    """Cross-entropy of the tags; the first token of a word represents it (Devlin et al. 2019)."""

    title = "tagging"
    cli_command = "tag"
    unit = "words"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "accuracy": Metric("accuracy", percent=True),
        "f1": Metric("F1", percent=True),  # of entities; equals the accuracy for tags of single words
    }
    model = TextEncoder
    datasets = (TaggedDataset,)
    config_class = TaggingConfig
    model_options: ClassVar = {"head": "tagger"}
    from_data = ("vocab_size", "labels", "label_names")
    evaluation_unit = "sentences"
    capturable = True

    @classmethod
    def sizes(cls, data: TaggedDataset, tokenizer: Tokenizer | None) -> dict[str, Any]:
        names = tuple(sorted({tag for sentence in data.splits["train"] for tag in sentence.tags}))
        return {**vocab_sizes(tokenizer), "labels": len(names), "label_names": names}

    def setup(self, data: TaggedDataset) -> None:
        model = self.model_config
        self.encoder = build_example_encoder(self.tokenizer, model)  # with a table of the training sentences only
        self.tokenizer = self.encoder.tokenizer
        self.valid = data.splits["valid"][: self.train_config.valid_size]
        if reads_trees(model):  # check all splits before training
            for split, sentences in data.splits.items():
                for number, sentence in enumerate(sentences, start=1):
                    require_heads(sentence, f"{split}: sentence {number}")
        self.train = self._encode(self.encoder, data.splits["train"])

    def _encode(self, encoder: AnyExampleEncoder, sentences: Sequence[Tagged]) -> EncodedSentences:
        model = self.model_config
        numbers = {name: number for number, name in enumerate(model.label_names)}
        return encode_sentences(encoder, sentences, numbers, model.max_length, trees=reads_trees(model))

    def describe(self) -> str:
        return f"{1 + self.train.words[-1][-1].sentence:,} sentences"

    def epoch(self, number: int) -> list[list[int]]:
        return epoch_batches(self.train.examples, self.train_config.batching, self.seed, number)

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> TextBatch:
        examples = [self.train.examples[row] for row in rows]
        if padded_to_shape:
            return collate_padded(examples, self.encoder.pad, self.train_config.batching, self.model_config.max_length)
        return collate(examples, self.encoder.pad)

    def loss(self, model: TextEncoder, batch: TextBatch) -> Float[Tensor, ""]:
        words = (batch.targets != IGNORE).sum().clamp(min=1)  # a tensor, so that CUDA graphs recompute it
        return _loss(model, self.encoder, batch, self.options.label_smoothing) / words

    @torch.inference_mode()
    def score_examples(self, model: TextEncoder, examples: Sequence[Tagged]) -> dict[str, float]:
        encoder = self.encoder.fresh_copy()
        encoded = self._encode(encoder, examples)
        total, words, batch_size = 0.0, 0, self.train_config.batching
        for _, batch in iter_batches(encoded.examples, batch_size, encoder.pad):
            total += float(_loss(model, encoder, batch.to(model.device)))
            words += batch.tokens
        predictions = predict_tags(model, encoder, examples, batch_size)
        return {"loss": total / words if words else math.nan, **tag_scores(predictions, examples)}


def tag_scores(predictions: Sequence[Sequence[str]], sentences: Sequence[Tagged]) -> dict[str, float]:
    """Accuracy and entity F1; for tags that do not mark entities, F1 is the accuracy."""
    targets = [sentence.tags for sentence in sentences]
    accuracy = tag_accuracy(predictions, targets)
    entities = are_entity_tags([tag for tags in targets for tag in tags])
    return {"accuracy": accuracy, "f1": entity_f1(predictions, targets) if entities else accuracy}


def _loss(
    model: TextEncoder, encoder: AnyExampleEncoder, batch: TextBatch, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    logits = tag_logits(model, encoder, batch).float().flatten(0, 1)
    targets = batch.targets.flatten()
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, label_smoothing=smoothing, reduction="sum")
