"""Make untrusted text safe to print: escape control characters, shorten long messages."""

import math
import re
from collections.abc import Sequence

LONGEST_MESSAGE = 500  # characters of an error or a note
ELLIPSIS = "…"
# Embeddings, overrides and isolates, which can reorder a line on a terminal.
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_VOWEL = re.compile("[AEIOaeio]|[FLMNRX][A-Z]")  # the names of these letters begin with a vowel
_CONTROL = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029{BIDI}]")


def escape_controls(text: str, keep: str = "") -> str:
    r"""Replace control characters, line separators and bidirectional controls by escapes such as \x1b."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else ascii(match[0])[1:-1], text)


def escape_controls_in_json(text: str) -> str:
    """Escape the control characters that `json.dumps` leaves unescaped; the JSON value is unchanged."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def aligned_numbers(values: Sequence[float]) -> list[str]:
    """Return numbers with the same number of decimals: three significant digits of the largest one."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    decimals = max(0, 2 - math.floor(math.log10(largest))) if largest else 0
    return [f"{value:.{decimals}f}" for value in values]


def with_article(name: str) -> str:
    """Return the name of a class after "a" or "an", as it is read: "an LSTM", "a Transformer"."""
    return f"{'an' if _VOWEL.match(name) else 'a'} {name}"


def shorten_middle(text: str, longest: int) -> str:
    """Shorten a text to `longest` characters by replacing its middle with an ellipsis."""
    if len(text) <= longest:
        return text
    tail = (longest - len(ELLIPSIS)) // 2
    return f"{text[: longest - len(ELLIPSIS) - tail]}{ELLIPSIS}{text[len(text) - tail :]}"


def message_line(text: str) -> str:
    """Return the text as one line of at most `LONGEST_MESSAGE` characters without control characters."""
    return shorten_middle(escape_controls(" ".join(text.splitlines())), LONGEST_MESSAGE)


def printable(text: str, longest: int = 200) -> str:
    """Return a text truncated and escaped for a one-line error message."""
    shortened = text if len(text) <= longest else f"{text[:longest]}..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in shortened)


def printable_repr(value: object, longest: int = 200) -> str:
    """Return the repr of a value, truncated and escaped for a one-line error message."""
    try:
        return printable(repr(value), longest)
    except ValueError:  # Python limits int-to-str conversion; TOML's hexadecimal integers can exceed it
        return "an integer with thousands of digits"
