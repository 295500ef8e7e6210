"""Tagging task: a label per word, e.g. its part of speech or entity."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch

from qkv.datasets.dataset import TaggedDataset
from qkv.datasets.examples.tagged import Tagged
from qkv.metrics import Metric
from qkv.metrics.tag_metrics import are_entity_tags, entity_f1, tag_accuracy
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.inputs.text_inputs import AnyExampleEncoder, Example, iter_batches
from qkv.pipelines.inputs.tree_inputs import reads_trees, require_heads
from qkv.pipelines.tagger import EncodedSentences, encode_sentences, predict_tags
from qkv.registry import register
from qkv.tasks.base.task import Sample
from qkv.tasks.base.text_encoder_task import TextEncoderTask, total_loss


@register("task", "tag")
class TaggingTask(TextEncoderTask):
    """Cross-entropy of the tags; the first token of a word represents it (Devlin et al. 2019)."""

    title = "tagging"
    cli_command = "tag"
    unit = "words"
    metrics: ClassVar = {
        **TextEncoderTask.metrics,
        "f1": Metric("F1", percent=True),  # of entities; equals the accuracy for tags of single words
    }
    datasets = (TaggedDataset,)
    model_options: ClassVar = {"head": "tagger"}
    evaluation_unit = "sentences"

    @classmethod
    def label_names(cls, examples: Sequence[Tagged]) -> set[str]:
        return {tag for sentence in examples for tag in sentence.tags}

    def setup(self, data: TaggedDataset) -> None:
        if reads_trees(self.model_config):  # check all splits before training
            for split, sentences in data.splits.items():
                for number, sentence in enumerate(sentences, start=1):
                    require_heads(sentence, f"{split}: sentence {number}")
        self.sentences = len(data.splits["train"])
        super().setup(data)

    def encode(self, examples: Sequence[Tagged]) -> list[Example]:
        return self._encode(self.encoder, examples).examples

    def _encode(self, encoder: AnyExampleEncoder, sentences: Sequence[Tagged]) -> EncodedSentences:
        trees = reads_trees(self.model_config)
        return encode_sentences(encoder, sentences, self.labels, self.max_length, trees=trees)

    def describe(self) -> str:
        return f"{self.sentences:,} sentences"

    @torch.inference_mode()
    def score_examples(self, model: TextEncoder, examples: Sequence[Tagged]) -> dict[str, float]:
        encoder = self.encoder.fresh_copy()
        total, words, batch_size = 0.0, 0, self.train_config.batching
        for _, batch in iter_batches(self._encode(encoder, examples).examples, batch_size, encoder.pad):
            total += float(total_loss(model, encoder, batch.to(model.device)))
            words += batch.tokens
        predictions = predict_tags(model, encoder, examples, batch_size)
        return {"loss": total / words if words else math.nan, **tag_scores(predictions, examples)}

    def samples(self, model: TextEncoder, count: int) -> list[Sample]:
        sentences = self.valid[:count]
        predicted = predict_tags(model, self.encoder.fresh_copy(), sentences, self.train_config.batching)
        return [
            Sample(" ".join(sentence.words), " ".join(tags), " ".join(sentence.tags))
            for sentence, tags in zip(sentences, predicted, strict=True)
        ]


def tag_scores(predictions: Sequence[Sequence[str]], sentences: Sequence[Tagged]) -> dict[str, float]:
    """Accuracy and entity F1; for tags that do not mark entities, F1 is the accuracy."""
    targets = [sentence.tags for sentence in sentences]
    accuracy = tag_accuracy(predictions, targets)
    entities = are_entity_tags([tag for tags in targets for tag in tags])
    return {"accuracy": accuracy, "f1": entity_f1(predictions, targets) if entities else accuracy}
