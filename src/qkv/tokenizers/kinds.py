"""Tokenizers that recipes can train."""

import re
from typing import Annotated

from pydantic import Field

from qkv.errors import InputError
from qkv.registry import register

SMALLEST, LARGEST = 5, 1_000_000  # tokens, including four special ones (five for wordpiece)
KIND = re.compile(r"char|word|(?:word|bpe|wordpiece):(\d{1,7})", re.ASCII)

VocabSize = Annotated[int, Field(ge=5, le=1_000_000)]  # tokens, including four special ones (five for wordpiece)


@register("tokenizer", "char")
class Char:
    """Every character is a token."""


@register("tokenizer", "word")
class Word:
    """Every word is a token."""

    @classmethod
    def from_sizes(cls, *, vocab_size: VocabSize | None = None) -> "Word":
        return cls()


@register("tokenizer", "bpe")
class BPE:
    """Byte-pair encoding."""

    @classmethod
    def from_sizes(cls, *, vocab_size: VocabSize = 8000) -> "BPE":
        return cls()


@register("tokenizer", "wordpiece")
class WordPiece:
    """WordPiece."""

    @classmethod
    def from_sizes(cls, *, vocab_size: VocabSize = 8000) -> "WordPiece":
        return cls()


def require_kind(kind: str, key: str = "vocabulary") -> None:
    """Raise for an invalid vocabulary kind; `key` names the config key in the message."""
    if not (match := KIND.fullmatch(kind)) or (match[1] and not SMALLEST <= int(match[1]) <= LARGEST):
        raise InputError(
            f"{key} {kind!r} is unknown: use char, word, word:N, bpe:N or wordpiece:N, with N from {SMALLEST} to "
            f"{LARGEST:,}"
        )
