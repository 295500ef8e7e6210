"""Split raw text into words, much as English treebanks do.

Words end at whitespace, and within a chunk:

    addresses                    are kept            www.example.org/a?b=1   me@example.org   @name   #topic
    numbers                      are kept            1,000.50   10:30   3/4
    initials and some titles     keep their periods  U.S.   e.g.   Mr.
    clitics                      are split off       do|n't   she|'s   we|'ll   dogs|'   can|not
    combining characters         stay attached       to the letter before them, in any script
    other punctuation            is split off        state|-|of|-|the|-|art   (|so|)   wait|...   what|?!   yes|:)
"""

import re
import unicodedata

Span = tuple[int, int]  # start and end offset in a text

ADDRESS = r"(?:https?://|www\.)[^\s<>]*[^\s<>.,;:!?)\]'\"”’]|[\w.+-]{1,64}@\w[\w-]*(?:\.[\w-]+)+|@\w+|#[^\W\d]\w*"
NUMBER = r"\d+(?:[.,:/]\d+)+"
DOTTED = r"(?:[^\W\d_]\.){2,}|(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Inc|Ltd|Corp|vs|etc)\.(?!\w)"
BEFORE_NOT = r"(?i:\w+?(?=n['’]t\b)|can(?=not\b))"
CLITIC = r"(?i:n['’]t\b|(?<=\w)['’](?:s|m|d|re|ve|ll)\b)"
WORD = r"\w+"
FACE = r"[:;=]-?[()DPp](?!\w)"
PUNCTUATION = r"[?!]+|([^\w\s])\1*"  # repeated characters are one word: ...

ZERO_WIDTH_JOINER = "\u200d"
JOINERS = ("\u200c", ZERO_WIDTH_JOINER, "\ufe0f")
WORD_PATTERN = re.compile("|".join((ADDRESS, NUMBER, DOTTED, BEFORE_NOT, CLITIC, WORD, FACE, PUNCTUATION)))


def split_words(text: str) -> list[Span]:
    """Offsets of the words of a text in order, with only whitespace between them."""
    spans: list[Span] = []
    joined = False  # whether the last match was a combining character: "\w" does not include them
    for begin, end in (match.span() for match in WORD_PATTERN.finditer(text)):
        attached = bool(spans) and spans[-1][1] == begin and _is_attached(text[begin])
        if attached or (joined and spans[-1][1] == begin and _continues(text, begin)):
            spans[-1] = spans[-1][0], end
        else:
            spans.append((begin, end))
        joined = attached
    return spans


def _is_attached(character: str) -> bool:
    """Whether a character combines with the one before it, or joins it with the next."""
    return unicodedata.category(character) in ("Mn", "Mc") or character in JOINERS


def _continues(text: str, index: int) -> bool:
    """Whether the character after a combining one belongs to the same word."""
    return text[index].isalnum() or text[index - 1] == ZERO_WIDTH_JOINER
