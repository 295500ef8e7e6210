"""Tagging as a task to learn: a label for each word, such as its part of speech or the entity that it belongs to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn import functional as F

from qkv.data.registry import Loaded
from qkv.data.tagged import Tagged
from qkv.metrics import Metric
from qkv.metrics.tagging import entity_f1, names_entities, tag_accuracy
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
from qkv.tasks.trees import Tree, parsed, reads_trees
from qkv.types import Float, Tensor


class Word(NamedTuple):
    """Where a word is."""

    sentence: int
    number: int  # in its sentence
    place: int  # of its first token, in the piece that it is read in


@dataclass(frozen=True)
class Cut:
    """Sentences in pieces that a model can read: one piece each, or several of a sentence that is too long."""

    pieces: list[Piece]
    words: list[list[Word]]  # that are in each piece


def cut(
    splitter: AnySplitter,
    sentences: Sequence[Tagged],
    labels: dict[str, int],
    longest: int,
    *,
    trees: bool = False,
) -> Cut:
    """The first token of each word says its tag; the others say nothing. A tag that has no label is not asked for.

    With `trees`, a piece also has the tree of its sentence, also of one that is read in several.
    """
    rows: list[tuple[list[int], list[int]]] = []  # the tokens of each piece, and what is to be said of them
    words: list[list[Word]] = []
    whole = splitter.room(longest)
    for sentence, tagged in enumerate(sentences):
        room = 0
        for number, (split, tag) in enumerate(zip(splitter.split_words(tagged.words), tagged.tags, strict=True)):
            token_ids = split[:whole]
            if len(token_ids) > room:
                rows.append(([], []))
                words.append([])
                room = whole
            room -= len(token_ids)
            ids, targets = rows[-1]
            words[-1].append(Word(sentence, number, splitter.first + len(ids)))
            ids.extend(token_ids)
            targets.extend([labels.get(tag, IGNORE), *[IGNORE] * (len(token_ids) - 1)])
    before = [IGNORE] * splitter.first
    pieces = [
        Piece(
            splitter.between(ids),
            before + targets,
            _tree(sentences, inside, splitter.first + len(ids)) if trees else None,
        )
        for (ids, targets), inside in zip(rows, words, strict=True)
    ]
    return Cut(pieces, words)


def _tree(sentences: Sequence[Tagged], words: Sequence[Word], end: int) -> Tree:
    """The tree that some words of a sentence are in, and where their tokens are, the last before `end`."""
    number = words[0].sentence
    heads = parsed(sentences[number], f"sentence {number + 1}").heads
    of_tokens = [0] * words[0].place
    for word, after in zip(words, [*(one.place for one in words[1:]), end], strict=True):
        of_tokens.extend([word.number + 1] * (after - word.place))
    return Tree(heads, of_tokens)


@dataclass
class TaggingTask(ScoredTask):
    """The loss is the cross-entropy of the tags; the first token of a word stands for it (Devlin et al. 2019)."""

    title = "tagging"
    command = "tag"
    unit = "words"
    metrics: ClassVar = {
        "loss": Metric("loss", higher_is_better=False),
        "accuracy": Metric("accuracy", percent=True),
        "f1": Metric("F1", percent=True),  # of whole entities; of other tags, which are one each, it is the accuracy
    }
    model = TextEncoder
    learns_from = "tagged"
    from_data = ("vocabulary_size", "head", "labels", "label_names")
    capturable = True

    splitter: AnySplitter  # that has met the training sentences, and meets no others
    train: Cut
    valid: list[Tagged]
    labels: tuple[str, ...]
    settings: Settings
    longest: int
    seed: int
    notes: tuple[str, ...]

    @classmethod
    def provisional(cls, table: Any) -> dict[str, Any]:
        return {"vocabulary_size": 1, "head": "tagger", "labels": 1, "label_names": ()}

    @classmethod
    def sizes(cls, data: Loaded, vocabulary: Any) -> dict[str, Any]:
        names = tuple(sorted({tag for sentence in data.tagged["train"] for tag in sentence.tags}))
        return {"vocabulary_size": len(vocabulary), "head": "tagger", "labels": len(names), "label_names": names}

    @classmethod
    def prepare(cls, data: Loaded, vocabulary: Any, model: Any, train: Settings, seed: int) -> "TaggingTask":
        names = tuple(model.label_names)
        numbers = {name: number for number, name in enumerate(names)}
        splitter = splitter_for(vocabulary, model)
        if reads_trees(model):  # also those that are not looked at until training is done
            for split, sentences in data.tagged.items():
                for number, sentence in enumerate(sentences, start=1):
                    parsed(sentence, f"{split}: sentence {number}")
        pieces = cut(splitter, data.tagged["train"], numbers, model.max_length, trees=reads_trees(model))
        valid = data.tagged["valid"][: train.valid_size]
        return cls(splitter, pieces, valid, names, train, model.max_length, seed, data.notes)

    def __post_init__(self) -> None:
        self.vocabulary = self.splitter.tokenizer

    def describe(self) -> str:
        return f"{1 + self.train.words[-1][-1].sentence:,} sentences"

    def epoch(self, number: int) -> list[list[int]]:
        return epoch_of(self.train.pieces, self.settings.batch_tokens, self.seed, number)

    def batch(self, rows: Sequence[int], *, filled: bool = False) -> TextBatch:
        pieces = [self.train.pieces[row] for row in rows]
        if filled:
            return batched_filled(pieces, self.splitter.pad, self.settings.batch_tokens, self.longest)
        return batched(pieces, self.splitter.pad)

    def loss(self, model: TextEncoder, batch: TextBatch) -> Float[Tensor, ""]:
        words = (batch.targets != IGNORE).sum().clamp(min=1)  # a tensor: a graph would keep the number of one batch
        return _loss(model, self.splitter, batch, self.settings.label_smoothing) / words

    def validate(self, model: TextEncoder) -> dict[str, float]:
        return self._scores(model, self.valid)

    @classmethod
    def splits(cls, data: Loaded) -> list[str]:
        return list(data.tagged)

    def examine(self, model: TextEncoder, data: Loaded, split: str) -> Examined:
        return Examined(len(data.tagged[split]), "sentences", self._scores(model, data.tagged[split]))

    @torch.inference_mode()
    def _scores(self, model: TextEncoder, sentences: Sequence[Tagged]) -> dict[str, float]:
        numbers = {name: number for number, name in enumerate(self.labels)}
        splitter = self.splitter.anew()
        known = cut(splitter, sentences, numbers, self.longest, trees=reads_trees(model.config))
        total, words, budget = 0.0, 0, self.settings.batch_tokens
        for _, batch in in_batches(known.pieces, budget, splitter.pad):
            total += float(_loss(model, splitter, batch.to(model.device)))
            words += batch.tokens
        found = tags_of(model, splitter, [one.words for one in sentences], budget, [one.heads for one in sentences])
        return {"loss": total / words if words else math.nan, **tag_scores(found, sentences)}


def tag_scores(found: Sequence[Sequence[str]], wanted: Sequence[Tagged]) -> dict[str, float]:
    """Accuracy, and F1 of entities; of tags that are no parts of entities each word is one, and F1 is the accuracy."""
    truth = [sentence.tags for sentence in wanted]
    accuracy = tag_accuracy(found, truth)
    entities = names_entities([tag for tags in truth for tag in tags])
    return {"accuracy": accuracy, "f1": entity_f1(found, truth) if entities else accuracy}


@torch.inference_mode()
def tags_of(
    model: TextEncoder,
    splitter: AnySplitter,
    sentences: Sequence[Sequence[str]],
    budget: int,
    heads: Sequence[tuple[int, ...] | None] | None = None,
) -> list[list[str]]:
    """The tag that a model gives to each word of sentences; one that reads trees needs the heads of the words."""
    names, splitter = model.labels, splitter.anew()
    known = heads or [None] * len(sentences)
    untagged = [Tagged(tuple(words), ("",) * len(words), of) for words, of in zip(sentences, known, strict=True)]
    read = cut(splitter, untagged, {}, model.config.max_length, trees=reads_trees(model.config))
    found = [[""] * len(words) for words in sentences]
    for rows, batch in in_batches(read.pieces, budget, splitter.pad):
        here = batch.to(model.device)
        best = _said(model, splitter, here).argmax(dim=-1).tolist()
        for row, labels in zip(rows, best, strict=True):
            for word in read.words[row]:
                found[word.sentence][word.number] = names[labels[word.place]]
    return found


def _loss(model: TextEncoder, splitter: AnySplitter, batch: TextBatch, smoothing: float = 0.0) -> Float[Tensor, ""]:
    logits = _said(model, splitter, batch).float().flatten(0, 1)
    targets = batch.targets.flatten()
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, label_smoothing=smoothing, reduction="sum")


def _said(model: TextEncoder, splitter: AnySplitter, batch: TextBatch) -> Float[Tensor, "batch length labels"]:
    tokens = splitter.read(batch.tokens_read)
    if batch.tree is None:
        return model.predict(tokens, batch.lengths)
    return model.logits(model(tokens, lengths=batch.lengths, tree=batch.tree))
