"""The tokens that have a part in decoding, of a vocabulary that was learned here or was released."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.data.tokenizer import PretrainedTokenizer
from qkv.data.vocabulary import BEGIN, END, PAD, SPECIAL, UNKNOWN, Vocabulary
from qkv.errors import InputError


@dataclass(frozen=True)
class Marks:
    """What texts begin and end with, what stands for the unknown, and what is never to be said."""

    begin: int
    end: int
    unknown: int | None
    never: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Vocabulary | PretrainedTokenizer, config: Any) -> "Marks":
        """By the model's config where it says so, as those of released translators do; else by the tokenizer."""
        if isinstance(tokenizer, Vocabulary):
            return cls(BEGIN, END, UNKNOWN, (PAD, UNKNOWN, BEGIN))
        roles = tokenizer.special_tokens
        begin, end, pad = (
            given if (given := getattr(config, f"{name}_token", None)) is not None else getattr(roles, name)
            for name in ("begin", "end", "pad")
        )
        if begin is None or end is None:
            raise InputError("the tokenizer does not say which tokens texts begin and end with")
        unsaid = dict.fromkeys(number for number in (pad, roles.unknown, begin) if number not in (None, end))
        return cls(begin, end, roles.unknown, tuple(number for number in unsaid if number is not None))


def never_written(tokenizer: Vocabulary | PretrainedTokenizer, size: int) -> Sequence[int]:
    """The tokens that a running text does not hold, of so many that a model knows: it may have room for more."""
    unnamed = range(len(tokenizer), size)
    if isinstance(tokenizer, Vocabulary):
        return [*range(len(SPECIAL)), *unnamed]
    pad, end = tokenizer.special_tokens.pad, tokenizer.special_tokens.end
    return [*([] if pad is None or pad == end else [pad]), *unnamed]


def plain_ids(tokenizer: Vocabulary | PretrainedTokenizer, text: str) -> list[int]:
    """The tokens of a text alone, without what a model expects around it."""
    return (
        tokenizer.encode(text).ids if isinstance(tokenizer, Vocabulary) else tokenizer.encode(text, specials=False).ids
    )
