"""The kinds of vocabularies, by the words that a recipe uses for them."""

import re

from qkv.errors import InputError

SMALLEST, LARGEST = 5, 1_000_000  # tokens; four are special, of word pieces five
KINDS = ("char", "word", "bpe", "wordpiece")
KIND = re.compile(r"char|word|(?:word|bpe|wordpiece):(\d{1,7})", re.ASCII)


def require_kind(kind: str, key: str = "vocabulary") -> None:
    """Raise for what is no kind of vocabulary; `key` is where it was asked for."""
    if not (match := KIND.fullmatch(kind)) or (match[1] and not SMALLEST <= int(match[1]) <= LARGEST):
        raise InputError(
            f"{key} {kind!r} is not known: use char, word, word:N, bpe:N or wordpiece:N, with N from {SMALLEST} to "
            f"{LARGEST:,}"
        )
