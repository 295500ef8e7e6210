"""ROUGE (Lin 2004) from rouge_score: n-gram and subsequence overlap between a text and its reference.

The score of a corpus is the mean F1 over its pairs, between 0 and 1. ROUGE-L treats a text as one sequence, whatever
its number of sentences (rougeL, not rougeLsum).

Words are lowercased and not stemmed. In ASCII they are those of rouge_score's own tokenizer, runs of a-z and 0-9, which
drops other characters: "fährt" becomes "f" and "hrt", and Greek text is empty. Here a word is a run of letters, digits
and marks of any script; in scripts without spaces (Han, kana, Thai, Lao, Burmese, Khmer) each character is a word.
"""

import unicodedata
from collections.abc import Sequence
from types import SimpleNamespace

ROUGE_SIGNATURE = "f1|case:lc|words:any-script|stem:no"
ROUGE_TYPES = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}  # our names and those of rouge_score
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


_SPACING = _Spacing()


def rouge_words(text: str) -> list[str]:
    """Return the words of a text: ["the", "cat", "s"] for "The cat's"."""
    return unicodedata.normalize("NFC", text.lower()).translate(_SPACING).split()


def rouge_scores(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L over pairs of text and reference (NaN without any)."""
    from rouge_score.rouge_scorer import RougeScorer  # takes a third of a second to import

    scorer = RougeScorer(list(ROUGE_TYPES.values()), tokenizer=SimpleNamespace(tokenize=rouge_words))
    scores = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    return {
        name: sum(score[rouge_type].fmeasure for score in scores) / len(scores) if scores else float("nan")
        for name, rouge_type in ROUGE_TYPES.items()
    }
