"""Tagging task: a label per word, e.g. its part of speech or entity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn import functional as F

from qkv.data.registry import LoadedData
from qkv.data.tagged import Tagged
from qkv.metrics import Metric
from qkv.metrics.tagging import are_entity_tags, entity_f1, tag_accuracy
from qkv.nn.text_encoder import TextEncoder
from qkv.tasks.examples import (
    IGNORE,
    AnyExampleEncoder,
    Example,
    TextBatch,
    build_example_encoder,
    collate,
    collate_padded,
    epoch_batches,
    iter_batches,
)
from qkv.tasks.task import ScoredTask, Settings, SplitScores
from qkv.tasks.trees import Tree, reads_trees, require_heads
from qkv.types import Float, Tensor


class Word(NamedTuple):
    """Location of a word."""

    sentence: int
    number: int  # in its sentence
    position: int  # of its first token, in its example


@dataclass(frozen=True)
class EncodedSentences:
    """Encoded sentences: one example each, or several for a sentence that is too long."""

    examples: list[Example]
    words: list[list[Word]]  # of each example


def encode_sentences(
    encoder: AnyExampleEncoder,
    sentences: Sequence[Tagged],
    labels: dict[str, int],
    max_length: int,
    *,
    trees: bool = False,
) -> EncodedSentences:
    """Encode tagged sentences; the first token of each word carries its tag, unknown tags are ignored.

    With `trees`, each example has the tree of its whole sentence, even if it holds only a part of it.
    """
    rows: list[tuple[list[int], list[int]]] = []  # the token ids and the targets of each example
    words: list[list[Word]] = []
    max_tokens = encoder.max_tokens(max_length)
    for sentence, tagged in enumerate(sentences):
        free = 0
        for index, (token_ids, tag) in enumerate(zip(encoder.encode_words(tagged.words), tagged.tags, strict=True)):
            token_ids = token_ids[:max_tokens]
            if len(token_ids) > free:
                rows.append(([], []))
                words.append([])
                free = max_tokens
            free -= len(token_ids)
            ids, targets = rows[-1]
            words[-1].append(Word(sentence, index, encoder.first_position + len(ids)))
            ids.extend(token_ids)
            targets.extend([labels.get(tag, IGNORE), *[IGNORE] * (len(token_ids) - 1)])
    before = [IGNORE] * encoder.first_position
    examples = [
        Example(
            encoder.add_special_tokens(ids),
            before + targets,
            _tree(sentences, inside, encoder.first_position + len(ids)) if trees else None,
        )
        for (ids, targets), inside in zip(rows, words, strict=True)
    ]
    return EncodedSentences(examples, words)


def _tree(sentences: Sequence[Tagged], words: Sequence[Word], end: int) -> Tree:
    """The tree of the sentence of `words`, and the word of each token before position `end`."""
    index = words[0].sentence
    heads = require_heads(sentences[index], f"sentence {index + 1}").heads
    word_of_token = [0] * words[0].position
    for word, next_position in zip(words, [*(word.position for word in words[1:]), end], strict=True):
        word_of_token.extend([word.number + 1] * (next_position - word.position))
    return Tree(heads, word_of_token)


@dataclass
class TaggingTask(ScoredTask):
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
    learns_from = "tagged"
    from_data = ("vocabulary_size", "head", "labels", "label_names")
    capturable = True

    encoder: AnyExampleEncoder  # with a table of the training sentences only
    train: EncodedSentences
    valid: list[Tagged]
    labels: tuple[str, ...]
    settings: Settings
    max_length: int
    seed: int
    notes: tuple[str, ...]

    @classmethod
    def placeholder_sizes(cls, table: Any) -> dict[str, Any]:
        return {"vocabulary_size": 1, "head": "tagger", "labels": 1, "label_names": ()}

    @classmethod
    def sizes(cls, data: LoadedData, vocabulary: Any) -> dict[str, Any]:
        names = tuple(sorted({tag for sentence in data.tagged["train"] for tag in sentence.tags}))
        return {"vocabulary_size": len(vocabulary), "head": "tagger", "labels": len(names), "label_names": names}

    @classmethod
    def prepare(cls, data: LoadedData, vocabulary: Any, model: Any, train: Settings, seed: int) -> "TaggingTask":
        names = tuple(model.label_names)
        numbers = {name: number for number, name in enumerate(names)}
        encoder = build_example_encoder(vocabulary, model)
        if reads_trees(model):  # check all splits before training
            for split, sentences in data.tagged.items():
                for number, sentence in enumerate(sentences, start=1):
                    require_heads(sentence, f"{split}: sentence {number}")
        examples = encode_sentences(encoder, data.tagged["train"], numbers, model.max_length, trees=reads_trees(model))
        valid = data.tagged["valid"][: train.valid_size]
        return cls(encoder, examples, valid, names, train, model.max_length, seed, data.notes)

    def __post_init__(self) -> None:
        self.vocabulary = self.encoder.tokenizer

    def describe(self) -> str:
        return f"{1 + self.train.words[-1][-1].sentence:,} sentences"

    def epoch(self, number: int) -> list[list[int]]:
        return epoch_batches(self.train.examples, self.settings.batch_tokens, self.seed, number)

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> TextBatch:
        examples = [self.train.examples[row] for row in rows]
        if padded_to_shape:
            return collate_padded(examples, self.encoder.pad, self.settings.batch_tokens, self.max_length)
        return collate(examples, self.encoder.pad)

    def loss(self, model: TextEncoder, batch: TextBatch) -> Float[Tensor, ""]:
        words = (batch.targets != IGNORE).sum().clamp(min=1)  # a tensor, so that CUDA graphs recompute it
        return _loss(model, self.encoder, batch, self.settings.label_smoothing) / words

    def validate(self, model: TextEncoder) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: LoadedData) -> list[str]:
        return list(data.tagged)

    def evaluate(self, model: TextEncoder, data: LoadedData, split: str) -> SplitScores:
        return SplitScores(len(data.tagged[split]), "sentences", self._scores(model, data.tagged[split]))

    @torch.inference_mode()
    def _scores(self, model: TextEncoder, sentences: Sequence[Tagged]) -> dict[str, float]:
        numbers = {name: number for number, name in enumerate(self.labels)}
        encoder = self.encoder.fresh_copy()
        encoded = encode_sentences(encoder, sentences, numbers, self.max_length, trees=reads_trees(model.config))
        total, words, budget = 0.0, 0, self.settings.batch_tokens
        for _, batch in iter_batches(encoded.examples, budget, encoder.pad):
            total += float(_loss(model, encoder, batch.to(model.device)))
            words += batch.tokens
        predictions = predict_tags(
            model,
            encoder,
            [sentence.words for sentence in sentences],
            budget,
            [sentence.heads for sentence in sentences],
        )
        return {"loss": total / words if words else math.nan, **tag_scores(predictions, sentences)}


def tag_scores(predictions: Sequence[Sequence[str]], sentences: Sequence[Tagged]) -> dict[str, float]:
    """Accuracy and entity F1; for tags that do not mark entities, F1 is the accuracy."""
    targets = [sentence.tags for sentence in sentences]
    accuracy = tag_accuracy(predictions, targets)
    entities = are_entity_tags([tag for tags in targets for tag in tags])
    return {"accuracy": accuracy, "f1": entity_f1(predictions, targets) if entities else accuracy}


@torch.inference_mode()
def predict_tags(
    model: TextEncoder,
    encoder: AnyExampleEncoder,
    sentences: Sequence[Sequence[str]],
    budget: int,
    heads: Sequence[tuple[int, ...] | None] | None = None,
) -> list[list[str]]:
    """Predict the tag of each word; models with tree positions need the heads of the words."""
    names, encoder = model.labels, encoder.fresh_copy()
    all_heads = heads or [None] * len(sentences)
    untagged = [
        Tagged(tuple(words), ("",) * len(words), word_heads)
        for words, word_heads in zip(sentences, all_heads, strict=True)
    ]
    encoded = encode_sentences(encoder, untagged, {}, model.config.max_length, trees=reads_trees(model.config))
    tags = [[""] * len(words) for words in sentences]
    for rows, batch in iter_batches(encoded.examples, budget, encoder.pad):
        batch = batch.to(model.device)
        best = _logits(model, encoder, batch).argmax(dim=-1).tolist()
        for row, labels in zip(rows, best, strict=True):
            for word in encoded.words[row]:
                tags[word.sentence][word.number] = names[labels[word.position]]
    return tags


def _loss(
    model: TextEncoder, encoder: AnyExampleEncoder, batch: TextBatch, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    logits = _logits(model, encoder, batch).float().flatten(0, 1)
    targets = batch.targets.flatten()
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, label_smoothing=smoothing, reduction="sum")


def _logits(model: TextEncoder, encoder: AnyExampleEncoder, batch: TextBatch) -> Float[Tensor, "batch length labels"]:
    tokens = encoder.lookup(batch.token_ids)
    if batch.tree is None:
        return model.predict(tokens, batch.lengths)
    return model.logits(model(tokens, lengths=batch.lengths, tree=batch.tree))
