"""Raw text cut into sentences, by rules for English and languages that are written like it.

A sentence ends with `.`, `!`, `?` or an ellipsis, and the quotes and brackets that close after it, where white space
follows; with a line break, unless the next line goes on in lower case; and with a mark between a word in lower case and
a capitalised one ("a bad film.The plot"), for in reviews the space is often missing. It does not end after a title
("Dr. No"), an initial ("John F. Kennedy") or the number of an item ("1. The plot"), nor before a word in lower case
after an ellipsis, an abbreviation, or a quotation ("Why?" he asked).
"""

import re
from collections.abc import Iterator

OPENING, CLOSING = "\"'“‘«([{*_-–—", "\"'”’»)]}"
END = re.compile(
    rf"(?<![.!?…])[.!?…]++[{re.escape(CLOSING)}]*+(?=\s)"  # marks, and white space after them,
    r"|(?<=[a-z]{2})[.!?…]++(?=[A-Z][a-z]{0,20}[\s,'])"  # or a capitalised word right after them
)
LINE_BREAK = re.compile(r"\n[^\S\n]*+")
NEXT_WORD = re.compile(rf"[\s{re.escape(OPENING)}]*+(\w*)")
LONGEST = 20  # characters of a word that are looked at

BEFORE_NAMES = {
    "mr", "mrs", "ms", "messrs", "mme", "mlle", "dr", "prof", "rev", "hon", "st", "mt", "ft", "gen", "col", "maj",
    "capt", "cpt", "lt", "sgt", "cpl", "cmdr", "adm", "det", "insp", "gov", "sen", "rep", "pres", "supt", "vs", "cf",
    "viz", "approx", "feat", "dept", "univ", "e.g", "i.e",
}  # fmt: skip
BEFORE_NUMBERS = {
    "no", "nos", "nr", "vol", "vols", "fig", "figs", "p", "pp", "ch", "ep", "eps", "op", "pt", "sec", "art", "ca", "c",
}  # fmt: skip
OTHERS = {  # abbreviations that may also end a sentence
    "etc", "jr", "sr", "esq", "inc", "ltd", "co", "corp", "bros", "ave", "blvd", "mins", "min", "hrs", "al", "ed",
    "eds",
}  # fmt: skip
ABBREVIATIONS = BEFORE_NAMES | BEFORE_NUMBERS | OTHERS
OPENERS = {  # words that in upper case are hardly a name
    "The", "A", "An", "This", "That", "These", "Those", "It", "He", "She", "We", "They", "I", "You", "There", "Here",
    "His", "Her", "Its", "Our", "My", "Their", "But", "And", "Or", "So", "If", "When", "While", "As", "At", "In", "On",
    "For", "To", "From", "With", "After", "Before", "Although", "Though", "However", "What", "Why", "How", "Who",
    "Where", "Not", "No", "Yes", "Then", "Now", "Once", "Also", "Another", "Some", "Many", "Most", "All", "One", "Even",
    "Just", "Only",
}  # fmt: skip


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in order: together they are the text again, but for white space, and none is empty."""
    found, begin = [], 0
    for end in (*_ends(text), len(text)):
        if sentence := text[begin:end].strip():
            found.append(sentence)
        begin = end
    return found


def _ends(text: str) -> list[int]:
    """Where sentences end."""
    after = (match.end() for match in LINE_BREAK.finditer(text))
    breaks = [place for place in after if not text[place : place + 1].islower()]
    return sorted({*breaks, *_marked_ends(text, breaks)})


def _marked_ends(text: str, breaks: list[int]) -> Iterator[int]:
    """Where marks end a sentence; whether one does may depend on where its sentence begins."""
    begin, lines = 0, iter([*breaks, len(text)])
    line = next(lines)
    for match in END.finditer(text):
        while line <= match.start():
            begin, line = line, next(lines)
        if _ends_sentence(text, begin, match):
            begin = match.end()
            yield begin


def _ends_sentence(text: str, begin: int, match: re.Match[str]) -> bool:
    coming = NEXT_WORD.match(text, match.end())
    assert coming is not None  # it may match nothing
    following, marks = coming[1], match[0].rstrip(CLOSING)
    before = text[max(begin, match.start() - LONGEST) : match.start()]
    word = "" if before[-1:].isspace() else "".join(before.split()[-1:]).lstrip(OPENING)
    if not following:  # more marks, or the end
        return text[coming.end() : coming.end() + 1] not in {*".!?…", *CLOSING}
    if following[0].islower():
        abbreviated = marks == "." and (_is_short(word) or len(word) == 1)
        trails_off = marks.endswith(("..", "…")) or before.rstrip().endswith(".")  # also ". . ."
        return marks == match[0] and not abbreviated and not trails_off
    if marks != "." or marks != match[0]:
        return True
    if word.isdecimal() or len(word) == 1:  # of an item, or an initial
        first = text[begin : match.start()].strip().lstrip(OPENING) == word
        return not first and (word.isdecimal() or word == "I" or not word.isupper())
    if word.lower() in BEFORE_NAMES:
        return False
    if word.lower() in BEFORE_NUMBERS:
        return not following[0].isdecimal()
    return not _is_short(word) or following in OPENERS


def _is_short(word: str) -> bool:
    """Whether a word with a full stop may be an abbreviation: one that is known, or has another stop inside (U.S.)."""
    return word.lower() in ABBREVIATIONS or ("." in word and all(len(part) == 1 for part in word.split(".")))
