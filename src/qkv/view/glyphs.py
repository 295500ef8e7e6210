"""Tokens as a person can read them: nothing invisible, nothing that moves the cursor."""

import unicodedata

_MARKS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"}
_JOINERS = "\u200c\u200d"  # part of the spelling inside a word, as in Persian


def visible(token: str) -> str:
    """The token with its spaces marked and its control characters spelt out, so that it can be shown anywhere."""
    if not token:
        return "∅"
    shown = "".join(c if c in _JOINERS and len(token) > 1 else _visible_character(c) for c in token)
    return f"◌{shown}" if unicodedata.combining(token[0]) else shown


def _visible_character(character: str) -> str:
    if character in _MARKS:
        return _MARKS[character]
    # Controls, formats (among them the ones that reverse text), surrogates, and the rarer spaces.
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}:
        return f"⟨{ord(character):04X}⟩"
    return character
