"""Rule-based sentence splitting for English and languages with similar punctuation.

A sentence ends with `.`, `!`, `?` or an ellipsis, including closing quotes and brackets, if followed by whitespace; at
a line break, unless the next line starts in lower case; and at punctuation between a lower-case and a capitalised word
("a bad film.The plot"), because reviews often omit the space. It does not end after a title ("Dr. No"), an initial
("John F. Kennedy") or an item number ("1. The plot"), nor before a lower-case word after an ellipsis, an abbreviation
or a quotation ("Why?" he asked).
"""

import re
from collections.abc import Iterator

OPENING, CLOSING = "\"'“‘«([{*_-–—", "\"'”’»)]}"
END = re.compile(
    rf"(?<![.!?…])[.!?…]++[{re.escape(CLOSING)}]*+(?=\s)"  # punctuation before whitespace,
    r"|(?<=[a-z]{2})[.!?…]++(?=[A-Z][a-z]{0,20}[\s,'])"  # or directly before a capitalised word
)
LINE_BREAK = re.compile(r"\n[^\S\n]*+")
NEXT_WORD = re.compile(rf"[\s{re.escape(OPENING)}]*+(\w*)")
CONTEXT = 20  # characters examined before the punctuation

BEFORE_NAMES = {
    "mr", "mrs", "ms", "messrs", "mme", "mlle", "dr", "prof", "rev", "hon", "st", "mt", "ft", "gen", "col", "maj",
    "capt", "cpt", "lt", "sgt", "cpl", "cmdr", "adm", "det", "insp", "gov", "sen", "rep", "pres", "supt", "vs", "cf",
    "viz", "approx", "feat", "dept", "univ", "e.g", "i.e",
}  # fmt: skip
BEFORE_NUMBERS = {
    "no", "nos", "nr", "vol", "vols", "fig", "figs", "p", "pp", "ch", "ep", "eps", "op", "pt", "sec", "art", "ca", "c",
}  # fmt: skip
OTHERS = {  # abbreviations that can end a sentence
    "etc", "jr", "sr", "esq", "inc", "ltd", "co", "corp", "bros", "ave", "blvd", "mins", "min", "hrs", "al", "ed",
    "eds",
}  # fmt: skip
ABBREVIATIONS = BEFORE_NAMES | BEFORE_NUMBERS | OTHERS
OPENERS = {  # capitalised words that are rarely names
    "The", "A", "An", "This", "That", "These", "Those", "It", "He", "She", "We", "They", "I", "You", "There", "Here",
    "His", "Her", "Its", "Our", "My", "Their", "But", "And", "Or", "So", "If", "When", "While", "As", "At", "In", "On",
    "For", "To", "From", "With", "After", "Before", "Although", "Though", "However", "What", "Why", "How", "Who",
    "Where", "Not", "No", "Yes", "Then", "Now", "Once", "Also", "Another", "Some", "Many", "Most", "All", "One", "Even",
    "Just", "Only",
}  # fmt: skip


def split_sentences(text: str) -> list[str]:
    """Split a text into non-empty sentences; joined, they equal the text up to whitespace."""
    sentences, begin = [], 0
    for end in (*_ends(text), len(text)):
        if sentence := text[begin:end].strip():
            sentences.append(sentence)
        begin = end
    return sentences


def _ends(text: str) -> list[int]:
    """Return the end offsets of sentences."""
    line_starts = (match.end() for match in LINE_BREAK.finditer(text))
    breaks = [offset for offset in line_starts if not text[offset : offset + 1].islower()]
    return sorted({*breaks, *_punctuation_ends(text, breaks)})


def _punctuation_ends(text: str, breaks: list[int]) -> Iterator[int]:
    """Yield the offsets where punctuation ends a sentence, which can depend on where that sentence begins."""
    begin, lines = 0, iter([*breaks, len(text)])
    line = next(lines)
    for match in END.finditer(text):
        while line <= match.start():
            begin, line = line, next(lines)
        if _ends_sentence(text, begin, match):
            begin = match.end()
            yield begin


def _ends_sentence(text: str, begin: int, match: re.Match[str]) -> bool:
    next_word = NEXT_WORD.match(text, match.end())
    assert next_word is not None  # the pattern matches the empty string
    following, marks = next_word[1], match[0].rstrip(CLOSING)
    before = text[max(begin, match.start() - CONTEXT) : match.start()]
    word = "" if before[-1:].isspace() else "".join(before.split()[-1:]).lstrip(OPENING)
    if not following:  # more punctuation, or the end of the text
        return text[next_word.end() : next_word.end() + 1] not in {*".!?…", *CLOSING}
    if following[0].islower():
        abbreviated = marks == "." and (_is_abbreviation(word) or len(word) == 1)
        trails_off = marks.endswith(("..", "…")) or before.rstrip().endswith(".")  # also ". . ."
        return marks == match[0] and not abbreviated and not trails_off
    if marks != "." or marks != match[0]:
        return True
    if word.isdecimal() or len(word) == 1:  # an item number or an initial
        first = text[begin : match.start()].strip().lstrip(OPENING) == word
        return not first and (word.isdecimal() or word == "I" or not word.isupper())
    if word.lower() in BEFORE_NAMES:
        return False
    if word.lower() in BEFORE_NUMBERS:
        return not following[0].isdecimal()
    return not _is_abbreviation(word) or following in OPENERS


def _is_abbreviation(word: str) -> bool:
    """Return whether a word before a full stop is a known abbreviation, or of the form U.S."""
    return word.lower() in ABBREVIATIONS or ("." in word and all(len(part) == 1 for part in word.split(".")))
