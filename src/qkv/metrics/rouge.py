"""ROUGE (Lin 2004): n-gram and subsequence overlap between a text and its reference.

    ROUGE-N:  common = sum over n-grams g of min(count of g in the text, count of g in the reference)
    ROUGE-L:  common = length of the longest common subsequence of their words
    P = common / size of the text,  R = common / size of the reference
    F1 = 2 P R / (P + R) = 2 common / (size of the text + size of the reference)

The size is the number of n-grams or words. The score of a corpus is the mean over its pairs, between 0 and 1. If a side
is empty, F1 is 0, even if both are, as in Google's rouge_score: texts of one word have a ROUGE-2 of 0. ROUGE-L treats a
text as one sequence, whatever its number of sentences (rouge_score's rougeL, not rougeLsum).

Words are lowercased and not stemmed. In ASCII they are those of rouge_score, runs of a-z and 0-9. rouge_score drops
other characters: "fährt" becomes "f" and "hrt", and Greek text is empty. Here a word is a run of letters, digits and
marks of any script; in scripts without spaces (Han, kana, Thai, Lao, Burmese, Khmer) each character is a word.
"""

import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

ROUGE_SIGNATURE = "f1|case:lc|words:any-script|stem:no"
WITHOUT_SPACES = (  # first and last code point of each block
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x30FF),  # kana, and iteration marks
    (0x3400, 0x4DBF),  # Han, like the rest
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


class _Spacing(dict[int, str]):
    """Cached translation table that puts spaces around words."""

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
    """Return the mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L over pairs of text and reference (NaN without any)."""
    pairs = [(rouge_words(text), rouge_words(reference)) for text, reference in zip(texts, references, strict=True)]
    scores = {
        "rouge_1": [_rouge_n(*pair, 1) for pair in pairs],
        "rouge_2": [_rouge_n(*pair, 2) for pair in pairs],
        "rouge_l": [_f1(common_subsequence(*pair), *map(len, pair)) for pair in pairs],
    }
    return {name: sum(values) / len(values) if values else float("nan") for name, values in scores.items()}


def rouge_words(text: str) -> list[str]:
    """Return the words of a text: ["the", "cat", "s"] for "The cat's"."""
    return unicodedata.normalize("NFC", text.lower()).translate(_SPACED).split()


def common_subsequence(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the length of the longest common subsequence (Hunt and Szymanski 1977).

    ends[k] is the smallest index in the shorter sequence at which a common subsequence of k + 1 words can end. Memory
    is linear in the shorter sequence; time is proportional to the number of matching word pairs, few in natural text.
    """
    short, long = sorted((left, right), key=len)
    indices: dict[str, list[int]] = {}
    for index in reversed(range(len(short))):  # backwards, so that a word of `long` extends a subsequence only once
        indices.setdefault(short[index], []).append(index)
    ends: list[int] = []
    for word in long:
        for index in indices.get(word, ()):
            k = bisect_left(ends, index)
            ends[k : k + 1] = [index]
    return len(ends)


def _rouge_n(text: list[str], reference: list[str], n: int) -> float:
    text_ngrams, reference_ngrams = _ngrams(text, n), _ngrams(reference, n)
    common = (text_ngrams & reference_ngrams).total()
    return _f1(common, text_ngrams.total(), reference_ngrams.total())


def _ngrams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


def _f1(common: int, text: int, reference: int) -> float:
    return 2 * common / (text + reference) if common else 0.0
