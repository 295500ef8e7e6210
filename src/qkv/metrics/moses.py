"""Moses tokenization for tokenized BLEU, as used for the tokenized files of Multi30k."""

import re
from itertools import pairwise

_LETTER = r"[^\W\d_]"
_PLAIN = str.maketrans(
    dict.fromkeys("„“”«»", '"') | dict.fromkeys("‚‘’´`", "'") | {"–": "-", "—": " - ", "…": "...", "\u00a0": " "}
)
_APOSTROPHE_OUTSIDE_A_WORD = re.compile(rf"(?<!{_LETTER})'|'(?!{_LETTER})")
_APOSTROPHE_INSIDE_A_WORD = re.compile(rf"(?<={_LETTER})'(?={_LETTER})")
# The side that an apostrophe is attached to: "don't" becomes "don 't" in English, "l'eau" becomes "l' eau" in French.
_JOINED = {"en": " '", "fr": "' ", "it": "' "}
# German words that keep their full stop: ordinals up to 99, as in Moses, and single letters.
_GERMAN_WITH_STOP = re.compile("[1-9][0-9]?|[a-z]")


def lowercased_words(text: str, language: str) -> list[str]:
    """Lowercase a text, normalize its quotes and dashes, and tokenize it like Moses ("en", "de", ...).

    Texts are lowercased first, as in Multi30k (Elliott et al. 2016): without capitals the start of a sentence cannot be
    detected, so a full stop inside a text stays attached to its word. Abbreviation lists are omitted: they change none
    of the 360,706 words of the German training text, and one of the 12,828 of the validation text.
    """
    text = " ".join(text.lower().translate(_PLAIN).split()).replace("''", '"')
    text = re.sub(r"([^\w\s.',-]|_)", r" \1 ", text)
    text = re.sub(r"\.{2,}", r" \g<0> ", text)
    text = re.sub(r"(?<!\d),|,(?!\d)", " , ", text)  # but 5,300 is one number
    if language in _JOINED:
        text = _APOSTROPHE_OUTSIDE_A_WORD.sub(" ' ", text)
        text = _APOSTROPHE_INSIDE_A_WORD.sub(_JOINED[language], text)
    else:
        text = text.replace("'", " ' ")
    return [part for word, after in pairwise([*text.split(), ""]) for part in _full_stop(word, after, language)]


def _full_stop(word: str, after: str, language: str) -> tuple[str, ...]:
    """Split the final full stop off a word, unless it belongs to it, as in e.g., J.P., and 10. in German."""
    stem = word.removesuffix(".")
    if stem in ("", word) or stem.endswith("."):
        return (word,)
    abbreviated = "." in stem and re.search(_LETTER, stem) is not None
    german = language == "de" and _GERMAN_WITH_STOP.fullmatch(stem) is not None
    return (word,) if abbreviated or german or after[:1].islower() else (stem, ".")
