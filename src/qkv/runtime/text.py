"""Text from files and models, made safe to print: control characters are escaped, long messages shortened."""

import re

LONGEST_MESSAGE = 500  # characters of an error or a note
ELLIPSIS = "…"
# Embeddings, overrides and isolates: they can make a terminal show a line in another order than it has.
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_CONTROL = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029{BIDI}]")


def escape_controls(text: str, keep: str = "") -> str:
    r"""Replace control characters, line separators and bidirectional controls by escapes such as \x1b."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else ascii(match[0])[1:-1], text)


def escape_controls_in_json(text: str) -> str:
    """Escape, in JSON text, the control characters that `json.dumps` leaves as they are; the value stays the same."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shorten_middle(text: str, longest: int) -> str:
    """Keep the start and the end of a text of more than `longest` characters."""
    if len(text) <= longest:
        return text
    tail = (longest - len(ELLIPSIS)) // 2
    return f"{text[: longest - len(ELLIPSIS) - tail]}{ELLIPSIS}{text[len(text) - tail :]}"


def message_line(text: str) -> str:
    """One line of at most `LONGEST_MESSAGE` characters without control characters."""
    return shorten_middle(escape_controls(" ".join(text.splitlines())), LONGEST_MESSAGE)
