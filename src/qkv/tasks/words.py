"""The words of a raw text, and where in it they stand, much as English treebanks cut them.

Words end at white space, and within what is left:

    addresses                    stay whole          www.example.org/a?b=1   me@example.org   @name   #topic
    numbers                      stay whole          1,000.50   10:30   3/4
    initials and some titles     keep their dots     U.S.   e.g.   Mr.
    clitics                      stand apart         do|n't   she|'s   we|'ll   dogs|'   can|not
    accents and other marks      stay with           the letter that they are put on, whatever the script
    any other mark               stands apart        state|-|of|-|the|-|art   (|so|)   wait|...   what|?!   yes|:)
"""

import re
import unicodedata

Span = tuple[int, int]  # where something begins in a text, and where it ends

ADDRESS = r"(?:https?://|www\.)[^\s<>]*[^\s<>.,;:!?)\]'\"”’]|[\w.+-]{1,64}@\w[\w-]*(?:\.[\w-]+)+|@\w+|#[^\W\d]\w*"
NUMBER = r"\d+(?:[.,:/]\d+)+"
DOTTED = r"(?:[^\W\d_]\.){2,}|(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Inc|Ltd|Corp|vs|etc)\.(?!\w)"
BEFORE_NOT = r"(?i:\w+?(?=n['’]t\b)|can(?=not\b))"
CLITIC = r"(?i:n['’]t\b|(?<=\w)['’](?:s|m|d|re|ve|ll)\b)"
WORD = r"\w+"
FACE = r"[:;=]-?[()DPp](?!\w)"
MARKS = r"[?!]+|([^\w\s])\1*"  # in a row they are one where they are alike: ...

ZERO_WIDTH_JOINER = "\u200d"
JOINERS = ("\u200c", ZERO_WIDTH_JOINER, "\ufe0f")
A_WORD = re.compile("|".join((ADDRESS, NUMBER, DOTTED, BEFORE_NOT, CLITIC, WORD, FACE, MARKS)))


def split_words(text: str) -> list[Span]:
    """Where the words of a text are, in order; between them is nothing but white space."""
    found: list[Span] = []
    joined = False  # whether what comes goes on with the word before: "\w" leaves out what is put on a letter
    for begin, end in (match.span() for match in A_WORD.finditer(text)):
        attached = bool(found) and found[-1][1] == begin and _is_attached(text[begin])
        if attached or (joined and found[-1][1] == begin and _goes_on(text, begin)):
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
        joined = attached
    return found


def _is_attached(character: str) -> bool:
    """Whether a character is put on the one before it, or joins it with the next."""
    return unicodedata.category(character) in ("Mn", "Mc") or character in JOINERS


def _goes_on(text: str, place: int) -> bool:
    """Whether what comes after such a character belongs to the same word."""
    return text[place].isalnum() or text[place - 1] == ZERO_WIDTH_JOINER
