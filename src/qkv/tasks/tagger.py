"""Tagging: a tag for each word of a text, and the entities the tags mark."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

from qkv.config import shown
from qkv.data.tagged import Tagged
from qkv.errors import InputError
from qkv.metrics.tagging import are_entity_tags, entities
from qkv.nn.text_encoder import TextEncoder
from qkv.tasks.tagging import predict_tags
from qkv.tasks.text_pipeline import BATCH_TOKENS, TextPipeline, require_text
from qkv.tasks.words import Span, split_words


@dataclass(frozen=True)
class Entity:
    """A named entity, e.g. a person."""

    kind: str
    text: str
    start: int  # index of its first character
    end: int  # index after its last character


@dataclass(frozen=True)
class TaggedText:
    """The words of a text, their offsets and their tags."""

    text: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    offsets: tuple[Span, ...]  # [start, end) of each word
    entities: tuple[Entity, ...] = ()  # for tags B-kind, I-kind and O


class Tagger(TextPipeline):
    """A text encoder with a tagging head: `Tagger("runs/ewt-bert-0")("She reads.").tags`.

    Texts are split by `split_words`; a sequence of words is used as it is, joined by spaces. Models with dependency
    trees take sentences with heads (`qkv.data.tagged.Tagged`), whose tags are ignored. Texts too long for the model are
    tagged in several parts.
    """

    heads: ClassVar = ("tagger",)

    def __init__(self, model: str | Path | TextEncoder, tokenizer: Any = None, device: str = "auto") -> None:
        super().__init__(model, tokenizer, device)
        if not self.model.config.label_names:
            raise InputError(f"{self.name}: the tags have no names: set label_names in config.json")

    def __call__(self, text: str | Sequence[str] | Tagged) -> TaggedText:
        """Tag one text, or one sequence of words."""
        return self.tag([text])[0]

    def tag(
        self, texts: Sequence[str | Sequence[str] | Tagged], *, batch_tokens: int = BATCH_TOKENS
    ) -> list[TaggedText]:
        """Tag each text."""
        inputs = [_Words.of(text) for text in texts]
        require_text([words.text for words in inputs])
        heads = [words.heads for words in inputs]
        predictions = predict_tags(self.model, self.encoder, [words.words for words in inputs], batch_tokens, heads)
        has_entities = are_entity_tags(self.model.config.label_names)
        return [
            TaggedText(
                words.text,
                words.words,
                tuple(tags),
                tuple(words.offsets),
                tuple(words.entities(tags)) if has_entities else (),
            )
            for words, tags in zip(inputs, predictions, strict=True)
        ]


@dataclass(frozen=True)
class _Words:
    """A text, the offsets of its words, and their heads if known."""

    text: str
    offsets: list[Span]
    heads: tuple[int, ...] | None = None

    @classmethod
    def of(cls, text: str | Sequence[str] | Tagged) -> "_Words":
        if isinstance(text, str):
            return cls(text, split_words(text))
        if isinstance(text, Tagged):
            return replace(cls.of(text.words), heads=text.heads)
        if not all(word.strip() for word in text):
            raise InputError(f"words must not be blank, but one of {shown(str(list(text)))} is")
        ends = accumulate(len(word) + 1 for word in text)
        return cls(" ".join(text), [(end - 1 - len(word), end - 1) for word, end in zip(text, ends, strict=True)])

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.text[start:end] for start, end in self.offsets)

    def entities(self, tags: Sequence[str]) -> Iterator[Entity]:
        """Entities marked by the tags, in the order of the text."""
        for first, after, kind in sorted(entities(tags)):
            start, end = self.offsets[first][0], self.offsets[after - 1][1]
            yield Entity(kind, self.text[start:end], start, end)
