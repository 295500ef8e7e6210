"""Tagging: a text in, a tag for each of its words out, and the entities that the tags name."""

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
from qkv.tasks.reader import BATCH_TOKENS, Reader, require_text
from qkv.tasks.tagging import tags_of
from qkv.tasks.words import Span, split_words


@dataclass(frozen=True)
class Entity:
    """Something that a text names: a person, say."""

    kind: str
    text: str
    start: int  # its first character,
    end: int  # and the one after its last


@dataclass(frozen=True)
class TaggedText:
    """The words of a text, where they stand in it, and what they are."""

    text: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    offsets: tuple[Span, ...]  # of each word, its first character and the one after its last
    entities: tuple[Entity, ...] = ()  # of tags B-kind, I-kind and O


class Tagger(Reader):
    """A model with a head for tags: `Tagger("runs/ewt-bert-0")("She reads.").tags`.

    A text is cut into words as `split_words` says; one that comes in words already is taken as those words, with a
    space between them. A model that reads dependency trees takes sentences with heads (`qkv.data.tagged.Tagged`), whose
    tags are not looked at. What is too long for the model is read in several parts.
    """

    heads: ClassVar = ("tagger",)

    def __init__(self, model: str | Path | TextEncoder, tokenizer: Any = None, device: str = "auto") -> None:
        super().__init__(model, tokenizer, device)
        if not self.model.config.label_names:
            raise InputError(f"{self.name}: nothing says what its tags are called: name them in config.json")

    def __call__(self, text: str | Sequence[str] | Tagged) -> TaggedText:
        """The tags of one text, or of the words of one."""
        return self.tag([text])[0]

    def tag(
        self, texts: Sequence[str | Sequence[str] | Tagged], *, batch_tokens: int = BATCH_TOKENS
    ) -> list[TaggedText]:
        """The tags of each text."""
        read = [_Words.of(text) for text in texts]
        require_text([one.text for one in read])
        heads = [one.heads for one in read]
        found = tags_of(self.model, self.splitter, [one.words for one in read], batch_tokens, heads)
        named = are_entity_tags(self.model.config.label_names)
        return [
            TaggedText(one.text, one.words, tuple(tags), tuple(one.offsets), tuple(one.entities(tags)) if named else ())
            for one, tags in zip(read, found, strict=True)
        ]


@dataclass(frozen=True)
class _Words:
    """A text, where its words are, and the words that they depend on, where that is known."""

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
            raise InputError(f"a word has at least one letter or mark, but one of {shown(str(list(text)))} has none")
        ends = accumulate(len(word) + 1 for word in text)
        return cls(" ".join(text), [(end - 1 - len(word), end - 1) for word, end in zip(text, ends, strict=True)])

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.text[start:end] for start, end in self.offsets)

    def entities(self, tags: Sequence[str]) -> Iterator[Entity]:
        """What the tags name, in the order of the text."""
        for first, after, kind in sorted(entities(tags)):
            start, end = self.offsets[first][0], self.offsets[after - 1][1]
            yield Entity(kind, self.text[start:end], start, end)
