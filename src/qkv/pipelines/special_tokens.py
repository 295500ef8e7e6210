"""Ids of the special tokens used in decoding, for learned and released vocabularies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.errors import InputError
from qkv.tokenizers.tokenizer import PretrainedTokenizer
from qkv.tokenizers.vocabulary import BEGIN, END, PAD, SPECIAL, UNKNOWN, Vocabulary


@dataclass(frozen=True)
class SpecialTokenIds:
    """Ids of the begin, end and unknown tokens, and of the tokens that are never generated."""

    begin: int
    end: int
    unknown: int | None
    suppress: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, tokenizer: Vocabulary | PretrainedTokenizer, config: Any) -> "SpecialTokenIds":
        """Read the ids from the model config where it sets them (released translators do), else from the tokenizer."""
        if isinstance(tokenizer, Vocabulary):
            return cls(BEGIN, END, UNKNOWN, (PAD, UNKNOWN, BEGIN))
        roles = tokenizer.special_tokens
        begin, end, pad = (
            token if (token := getattr(config, f"{name}_token", None)) is not None else getattr(roles, name)
            for name in ("begin", "end", "pad")
        )
        if begin is None or end is None:
            raise InputError("the tokenizer defines no begin or end token")
        suppress = dict.fromkeys(token for token in (pad, roles.unknown, begin) if token not in (None, end))
        return cls(begin, end, roles.unknown, tuple(token for token in suppress if token is not None))


def suppressed_tokens(tokenizer: Vocabulary | PretrainedTokenizer, size: int) -> Sequence[int]:
    """Tokens that must not be generated in running text, including unused ids of a model with `size` outputs."""
    unused = range(len(tokenizer), size)
    if isinstance(tokenizer, Vocabulary):
        return [*range(len(SPECIAL)), *unused]
    pad, end = tokenizer.special_tokens.pad, tokenizer.special_tokens.end
    return [*([] if pad is None or pad == end else [pad]), *unused]


def encode_plain(tokenizer: Vocabulary | PretrainedTokenizer, text: str) -> list[int]:
    """Token ids of a text without special tokens."""
    return (
        tokenizer.encode(text).ids if isinstance(tokenizer, Vocabulary) else tokenizer.encode(text, specials=False).ids
    )
