"""Vocabulary kinds as written in recipes."""

import re

from qkv.errors import InputError

SMALLEST, LARGEST = 5, 1_000_000  # tokens, including four special ones (five for wordpiece)
KINDS = ("char", "word", "bpe", "wordpiece")
KIND = re.compile(r"char|word|(?:word|bpe|wordpiece):(\d{1,7})", re.ASCII)


def require_kind(kind: str, key: str = "vocabulary") -> None:
    """Raise for an invalid vocabulary kind; `key` names the config key in the message."""
    if not (match := KIND.fullmatch(kind)) or (match[1] and not SMALLEST <= int(match[1]) <= LARGEST):
        raise InputError(
            f"{key} {kind!r} is unknown: use char, word, word:N, bpe:N or wordpiece:N, with N from {SMALLEST} to "
            f"{LARGEST:,}"
        )
