"""Printable tokens: mark spaces, escape control characters, truncate long tokens."""

import unicodedata

_MARKS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"}
LONGEST_TOKEN = 80  # maximum characters shown of a token; as in explorer/app/text.js
LONGEST_TEXT = 2000  # maximum characters shown of a text or tooltip
ELLIPSIS = "…"
_JOINERS = "\u200c\u200d"  # required by the spelling of some languages, e.g. Persian


def visible(token: str) -> str:
    """Return a token with spaces marked, control characters escaped, and truncated if long."""
    if not token:  # a space that the tokenizer strips from the beginning of a text
        return _MARKS[" "]
    shown = "".join(c if c in _JOINERS and len(token) > 1 else _visible_character(c) for c in token[:LONGEST_TOKEN])
    shown = f"◌{shown}" if unicodedata.combining(token[0]) else shown
    return f"{shown}{ELLIPSIS}" if len(token) > LONGEST_TOKEN else shown


def clipped(text: str) -> str:
    """Truncate a text that is too long for a page."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}{ELLIPSIS}"


def _visible_character(character: str) -> str:
    if character in _MARKS:
        return _MARKS[character]
    # Controls, formats (including bidirectional controls), surrogates and unusual spaces.
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}:
        return f"⟨{ord(character):04X}⟩"
    return character
