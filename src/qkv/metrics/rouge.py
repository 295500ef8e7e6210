"""ROUGE (Lin 2004): how much of a summary a text says, and how much of the text the summary says.

    ROUGE-N:  common = sum over n-grams g of min(count of g in the text, count of g in the reference)
    ROUGE-L:  common = length of the longest common subsequence of their words
    P = common / size of the text,  R = common / size of the reference
    F1 = 2 P R / (P + R) = 2 common / (size of the text + size of the reference)

A size is how many n-grams, or words, there are. A corpus has the mean of its pairs, between 0 and 1. Where a side has
none, F1 is 0, even if the other has none either, as in Google's rouge_score: texts of one word have a ROUGE-2 of 0.
ROUGE-L takes a text as one sequence, however many sentences it has (rouge_score's rougeL, not its rougeLsum).

Words are in lower case and not stemmed. In ASCII they are those of rouge_score, the runs of a-z and 0-9. It passes over
all else: "fährt" would be "f" and "hrt", and Greek nothing. Here a word is a run of letters, digits and marks of any
script; in scripts without spaces between words (Han, kana, Thai, Lao, Burmese, Khmer) each character is a word.
"""

import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

ROUGE_SIGNATURE = "f1|case:lc|words:any-script|stem:no"
WITHOUT_SPACES = (  # the first and the last character of blocks
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x30FF),  # kana, and signs of repetition
    (0x3400, 0x4DBF),  # Han, as the rest
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


class _Spacing(dict[int, str]):
    """What stands for each character before words are split at spaces, looked up once."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if unicodedata.category(character)[0] not in "LNM":  # letters, numbers, marks
            character = " "
        elif any(first <= code <= last for first, last in WITHOUT_SPACES):
            character = f" {character} "
        self[code] = character
        return character


_SPACED = _Spacing()


def rouge_scores(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L over pairs of a text and its reference (NaN of none)."""
    pairs = [(rouge_words(text), rouge_words(reference)) for text, reference in zip(texts, references, strict=True)]
    found = {
        "rouge_1": [_rouge_n(*pair, 1) for pair in pairs],
        "rouge_2": [_rouge_n(*pair, 2) for pair in pairs],
        "rouge_l": [_f1(common_subsequence(*pair), *map(len, pair)) for pair in pairs],
    }
    return {name: sum(values) / len(values) if values else float("nan") for name, values in found.items()}


def rouge_words(text: str) -> list[str]:
    """The words of a text that are compared: those of "The cat's" are "the", "cat" and "s"."""
    return unicodedata.normalize("NFC", text.lower()).translate(_SPACED).split()


def common_subsequence(left: Sequence[str], right: Sequence[str]) -> int:
    """The length of the longest common subsequence (Hunt and Szymanski 1977).

    Of the shorter sequence, ends[k] is the earliest place where a common subsequence of k + 1 words can end. Memory is
    that of the shorter one; time goes with how often a word of one is a word of the other, which in texts is rare.
    """
    short, long = sorted((left, right), key=len)
    places: dict[str, list[int]] = {}
    for place in reversed(range(len(short))):  # a word of `long` may lengthen a subsequence only once: from the back
        places.setdefault(short[place], []).append(place)
    ends: list[int] = []
    for word in long:
        for place in places.get(word, ()):
            k = bisect_left(ends, place)
            ends[k : k + 1] = [place]
    return len(ends)


def _rouge_n(text: list[str], reference: list[str], n: int) -> float:
    ours, truth = _grams(text, n), _grams(reference, n)
    return _f1((ours & truth).total(), ours.total(), truth.total())


def _grams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


def _f1(common: int, text: int, reference: int) -> float:
    return 2 * common / (text + reference) if common else 0.0
