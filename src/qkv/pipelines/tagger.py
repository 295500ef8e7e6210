"""Tagging: a tag for each word of a text, and the entities the tags mark."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import torch

from qkv.datasets.batching import BatchSize
from qkv.datasets.examples.tagged import Tagged
from qkv.errors import InputError
from qkv.metrics.tag_metrics import are_entity_tags, entities
from qkv.nn.interfaces import TextEncoder
from qkv.pipelines.inputs.text_inputs import (
    IGNORE,
    AnyExampleEncoder,
    Example,
    TextBatch,
    inference_batch_size,
    inference_batches,
)
from qkv.pipelines.inputs.tree_inputs import DependencyTree, reads_trees, require_heads
from qkv.pipelines.pipeline import TextPipeline, one_or_many, require_text
from qkv.runtime.notebook import Drawable, quoted
from qkv.runtime.text import printable
from qkv.tokenizers.tokenizer import Span
from qkv.tokenizers.words import split_words
from qkv.types import Float, Tensor


@dataclass(frozen=True)
class Entity:
    """A named entity, e.g. a person."""

    kind: str
    text: str
    start: int  # index of its first character
    end: int  # index after its last character


@dataclass(frozen=True, repr=False)
class TaggedText(Drawable):
    """The words of a text, their offsets and their tags."""

    text: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    offsets: tuple[Span, ...]  # [start, end) of each word
    entities: tuple[Entity, ...] = ()  # for tags B-kind, I-kind and O

    def __repr__(self) -> str:
        if self.entities:
            return f"TaggedText({quoted(self.text)}, entities {quoted(self._entity_list)})"
        return f"TaggedText({quoted(' '.join(map('/'.join, zip(self.words, self.tags, strict=True))))})"

    def table_row(self) -> tuple[str, str, str]:
        return self.text, self._entity_list or " ".join(self.tags), ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, as `qkv tag --json` prints them."""
        return asdict(self)

    @property
    def _entity_list(self) -> str:
        return ", ".join(f"{entity.text} ({entity.kind})" for entity in self.entities)


class Tagger(TextPipeline):
    """A text encoder with a tagging head: `Tagger("runs/ewt-bert-0")("She reads.").tags`.

    Texts are split by `split_words`; a tuple of words is used as it is, joined by spaces. Models with dependency trees
    take sentences with heads (`Tagged`), whose tags are ignored. Texts too long for the model are
    tagged in several parts.
    """

    task_description: ClassVar = "tagging"
    heads: ClassVar = ("tagger",)
    input_types: ClassVar = (str, tuple, Tagged)

    def setup(self) -> None:
        super().setup()
        if not self.model.config.label_names:
            raise InputError(f"{self.name}: the tags have no names: set label_names in config.json")

    @one_or_many
    def __call__(
        self, texts: Sequence[str | tuple[str, ...] | Tagged], *, batch_size: int | None = None
    ) -> list[TaggedText]:
        """Tag the words of one text or several.

            qkv.Tagger("runs/ewt-bert-0")("She reads.").tags  # ("PRON", "VERB", "PUNCT")

        Args:
            texts: A text or several; a text may be a tuple of its words.
            batch_size: Number of texts processed at a time; by default as many as fit in memory.

        Returns:
            One `TaggedText` for each text, with `words`, `tags` and `entities`.
        """
        inputs = [split_sentence(text) for text in texts]
        require_text([text for text, _, _ in inputs])
        sentences = [sentence for _, _, sentence in inputs]
        predictions = predict_tags(self.model, self.encoder, sentences, inference_batch_size(batch_size))
        has_entities = are_entity_tags(self.model.config.label_names)
        return [
            TaggedText(
                text,
                sentence.words,
                tuple(tags),
                tuple(offsets),
                tuple(_entities(text, offsets, tags)) if has_entities else (),
            )
            for (text, offsets, sentence), tags in zip(inputs, predictions, strict=True)
        ]


def split_sentence(text: str | tuple[str, ...] | Tagged) -> tuple[str, list[Span], Tagged]:
    """A text, the offsets of its words, and the words as an untagged sentence."""
    if isinstance(text, str):
        offsets = split_words(text)
        words = tuple(text[start:end] for start, end in offsets)
        return text, offsets, Tagged(words, ("",) * len(words))
    words, heads = (text.words, text.heads) if isinstance(text, Tagged) else (text, None)
    if not all(word.strip() for word in words):
        raise InputError(f"words must not be blank, but one of {printable(str(list(words)))} is")
    ends = accumulate(len(word) + 1 for word in words)
    offsets = [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]
    return " ".join(words), offsets, Tagged(words, ("",) * len(words), heads)


def _entities(text: str, offsets: Sequence[Span], tags: Sequence[str]) -> Iterator[Entity]:
    """Entities marked by the tags, in the order of the text."""
    for first, after, kind in sorted(entities(tags)):
        start, end = offsets[first][0], offsets[after - 1][1]
        yield Entity(kind, text[start:end], start, end)


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


def _tree(sentences: Sequence[Tagged], words: Sequence[Word], end: int) -> DependencyTree:
    """The tree of the sentence of `words`, and the word of each token before position `end`."""
    index = words[0].sentence
    heads = require_heads(sentences[index], f"sentence {index + 1}").heads
    word_of_token = [0] * words[0].position
    for word, next_position in zip(words, [*(word.position for word in words[1:]), end], strict=True):
        word_of_token.extend([word.number + 1] * (next_position - word.position))
    return DependencyTree(heads, word_of_token)


def predict_tags(
    model: TextEncoder, encoder: AnyExampleEncoder, sentences: Sequence[Tagged], batch_size: BatchSize
) -> list[list[str]]:
    """Predict the tag of each word, whatever its tag is; models with tree positions need the heads of the words."""
    logits = tag_logits(model, encoder, sentences, batch_size)
    return [[model.labels[number] for number in words.argmax(dim=-1).tolist()] for words in logits]


@torch.inference_mode()
def tag_logits(
    model: TextEncoder, encoder: AnyExampleEncoder, sentences: Sequence[Tagged], batch_size: BatchSize
) -> list[Float[Tensor, "_words labels"]]:
    """Logits of the tags of the words of each sentence."""
    encoder = encoder.fresh_copy()
    encoded = encode_sentences(encoder, sentences, {}, model.config.max_length, trees=reads_trees(model.config))
    by_word = [torch.zeros(len(sentence.words), model.config.labels) for sentence in sentences]
    for rows, batch in inference_batches(encoded.examples, batch_size, encoder, model.config.max_length):
        batch = batch.to(model.device)
        logits = label_logits(model, encoder, batch).float().cpu()
        for row, of_tokens in zip(rows, logits, strict=True):
            for word in encoded.words[row]:
                by_word[word.sentence][word.number] = of_tokens[word.position]
    return by_word


def label_logits(
    model: TextEncoder, encoder: AnyExampleEncoder, batch: TextBatch
) -> Float[Tensor, "batch *length labels"]:
    """Logits of the labels of texts, or of every token for a tagger."""
    tokens = encoder.lookup(batch.token_ids)
    if batch.tree is None:
        return model.predict(tokens, batch.lengths)
    return model.logits(model(tokens, lengths=batch.lengths, tree=batch.tree))
