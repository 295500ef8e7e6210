"""The words of a raw text, and where in it they stand, much as English treebanks cut them.

Words end at white space, and within what is left:

    addresses                    stay whole          www.example.org/a?b=1   me@example.org   @name   #topic
    numbers                      stay whole          1,000.50   10:30   3/4
    initials and some titles     keep their dots     U.S.   e.g.   Mr.
    clitics                      stand apart         do|n't   she|'s   we|'ll   dogs|'   can|not
    any other mark               stands apart        state|-|of|-|the|-|art   (|so|)   wait|...   what|?!   yes|:)
"""

import re

Span = tuple[int, int]  # where something begins in a text, and where it ends

ADDRESS = r"(?:https?://|www\.)[^\s<>]*[^\s<>.,;:!?)\]'\"”’]|[\w.+-]{1,64}@\w[\w-]*(?:\.[\w-]+)+|@\w+|#[^\W\d]\w*"
NUMBER = r"\d+(?:[.,:/]\d+)+"
DOTTED = r"(?:[^\W\d_]\.){2,}|(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Inc|Ltd|Corp|vs|etc)\.(?!\w)"
BEFORE_NOT = r"(?i:\w+?(?=n['’]t\b)|can(?=not\b))"
CLITIC = r"(?i:n['’]t\b|(?<=\w)['’](?:s|m|d|re|ve|ll)\b)"
WORD = r"\w+"
FACE = r"[:;=]-?[()DPp](?!\w)"
MARKS = r"[?!]+|([^\w\s])\1*"  # in a row they are one where they are alike: ...

A_WORD = re.compile("|".join((ADDRESS, NUMBER, DOTTED, BEFORE_NOT, CLITIC, WORD, FACE, MARKS)))


def split_words(text: str) -> list[Span]:
    """Where the words of a text are, in order; between them is nothing but white space."""
    return [match.span() for match in A_WORD.finditer(text)]
