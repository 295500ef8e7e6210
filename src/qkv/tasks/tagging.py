"""Tagging task: a label per word, e.g. its part of speech or entity."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from qkv.datasets.dataset import TaggedDataset
from qkv.datasets.examples.tagged import Tagged
from qkv.metrics import Metric
from qkv.metrics.class_metrics import ClassTable
from qkv.metrics.tag_metrics import are_entity_tags, entity_f1, entity_table, tag_accuracy, tag_intervals
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.inputs.text_inputs import AnyExampleEncoder, Example, iter_batches
from qkv.pipelines.inputs.tree_inputs import reads_trees, require_heads
from qkv.pipelines.tagger import EncodedSentences, encode_sentences, predict_tags, tag_logits
from qkv.registry import register
from qkv.tasks.base.evaluation import Evaluation, label_details, require_known_label
from qkv.tasks.base.task import Sample
from qkv.tasks.base.text_encoder_task import TextEncoderTask, total_loss
from qkv.types import Float, Tensor

CONTEXT = 8  # words shown before and after a word with the wrong tag


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

    def check_files(self, data: TaggedDataset, split: str) -> None:
        require_known_label(self.label_names(data.splits[split]), self.labels, split, "tags")

    def score_examples(self, model: TextEncoder, examples: Sequence[Tagged]) -> dict[str, float]:
        predictions = predict_tags(model, self.encoder, examples, self.train_config.batching)
        return {"loss": self._mean_loss(model, examples), **tag_scores(predictions, examples)}

    def evaluate(self, model: TextEncoder, data: TaggedDataset, split: str) -> Evaluation:
        """All metrics on a split, and the scores of each tag, or of each type of entity."""
        sentences = data.splits[split]
        logits = tag_logits(model, self.encoder, sentences, self.train_config.batching)
        predictions = [[model.labels[number] for number in words.argmax(dim=-1).tolist()] for words in logits]
        scores = {"loss": self._mean_loss(model, sentences), **tag_scores(predictions, sentences)}
        details = tag_details(torch.cat(logits).softmax(dim=-1), model.labels, predictions, sentences)
        return Evaluation(len(sentences), self.evaluation_unit, scores, **details)

    @torch.inference_mode()
    def _mean_loss(self, model: TextEncoder, sentences: Sequence[Tagged]) -> float:
        encoder = self.encoder.fresh_copy()
        total, words = 0.0, 0
        for _, batch in iter_batches(
            self._encode(encoder, sentences).examples, self.train_config.batching, encoder.pad
        ):
            total += float(total_loss(model, encoder, batch.to(model.device)))
            words += batch.tokens
        return total / words if words else math.nan

    def samples(self, model: TextEncoder, count: int) -> list[Sample]:
        sentences = self.valid[:count]
        predicted = predict_tags(model, self.encoder.fresh_copy(), sentences, self.train_config.batching)
        return [
            Sample(" ".join(sentence.words), " ".join(tags), " ".join(sentence.tags))
            for sentence, tags in zip(sentences, predicted, strict=True)
        ]


def tag_details(
    probabilities: Float[Tensor, "words labels"],
    names: Sequence[str],
    predictions: Sequence[Sequence[str]],
    sentences: Sequence[Tagged],
) -> dict[str, Any]:
    """Return the scores of each tag, or of each type of entity, and the words with the least probable references."""
    references = [tag for sentence in sentences for tag in sentence.tags]
    sources = [_in_context(sentence.words, number) for sentence in sentences for number in range(len(sentence.words))]
    details = label_details(probabilities, names, references, sources)
    gold = [sentence.tags for sentence in sentences]
    details["intervals"] = tag_intervals(predictions, gold)  # the words of a sentence are not independent
    if not are_entity_tags(references):
        (table,) = details["classes"]
        return {**details, "classes": (ClassTable("tags", table.rows),)}
    return {**details, "classes": (entity_table(predictions, gold),)}


def _in_context(words: Sequence[str], number: int) -> str:
    """Return a word in brackets between the words around it."""
    first, last = max(0, number - CONTEXT), number + 1 + CONTEXT
    before = [*["…"] * (first > 0), *words[first:number]]
    after = [*words[number + 1 : last], *["…"] * (last < len(words))]
    return " ".join([*before, f"[{words[number]}]", *after])


def tag_scores(predictions: Sequence[Sequence[str]], sentences: Sequence[Tagged]) -> dict[str, float]:
    """Accuracy and entity F1; for tags that do not mark entities, F1 is the accuracy."""
    targets = [sentence.tags for sentence in sentences]
    accuracy = tag_accuracy(predictions, targets)
    entities = are_entity_tags([tag for tags in targets for tag in tags])
    return {"accuracy": accuracy, "f1": entity_f1(predictions, targets) if entities else accuracy}
