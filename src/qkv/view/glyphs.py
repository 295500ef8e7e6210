"""Tokens made readable: invisible characters are marked, control characters spelled out, long tokens shortened."""

import unicodedata

_MARKS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"}
LONGEST_TOKEN = 80  # characters of a token that are shown; as in page.html
LONGEST_TEXT = 2000  # characters of a whole text, or of the title of a token, that are shown
ELLIPSIS = "…"
_JOINERS = "\u200c\u200d"  # part of the spelling inside a word, as in Persian


def visible(token: str) -> str:
    """The start of a token with its spaces marked and its control characters spelled out, to be shown anywhere."""
    if not token:
        return "∅"
    shown = "".join(c if c in _JOINERS and len(token) > 1 else _visible_character(c) for c in token[:LONGEST_TOKEN])
    shown = f"◌{shown}" if unicodedata.combining(token[0]) else shown
    return f"{shown}{ELLIPSIS}" if len(token) > LONGEST_TOKEN else shown


def clipped(text: str) -> str:
    """The start of a text that may be too long for a page."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}{ELLIPSIS}"


def _visible_character(character: str) -> str:
    if character in _MARKS:
        return _MARKS[character]
    # Controls, formats (among them the ones that reverse text), surrogates, and the rarer spaces.
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}:
        return f"⟨{ord(character):04X}⟩"
    return character
