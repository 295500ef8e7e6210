"""How close texts are to their references."""

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.metrics.words import lowercased_words


@dataclass(frozen=True)
class Score:
    """A number, and the signature that says how it was computed."""

    value: float
    signature: str = ""  # empty where the name says it all


def exact_match(texts: Sequence[str], references: Sequence[str]) -> float:
    """The share of texts that equal their reference (NaN of none)."""
    if not references:
        return float("nan")
    return sum(text == reference for text, reference in zip(texts, references, strict=True)) / len(references)


def character_error_rate(texts: Sequence[str], references: Sequence[str]) -> float:
    """Insertions, deletions and substitutions per reference character, over the whole corpus (NaN without any)."""
    errors = sum(edit_distance(text, reference) for text, reference in zip(texts, references, strict=True))
    characters = sum(map(len, references))
    return errors / characters if characters else float("nan")


def edit_distance(left: Sequence[object], right: Sequence[object]) -> int:
    """The fewest insertions, deletions and substitutions that turn one sequence into the other (Levenshtein)."""
    if left == right:
        return 0
    row = list(range(len(right) + 1))
    for i, one in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(right, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (one != other))
    return row[-1]


def corpus_scores(texts: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    """BLEU and chrF by sacrebleu, each with the signature that says how it was computed."""
    scores: dict[str, float | str] = {}
    for name, score in (("bleu", bleu(texts, references)), ("chrf", chrf(texts, references))):
        scores[name] = score.value
        scores[f"{name}_signature"] = score.signature
    return scores


def bleu(texts: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """BLEU (Papineni et al. 2002) as sacrebleu gives it (Post 2018): plain texts, split by its tokeniser 13a."""
    from sacrebleu import BLEU  # takes a quarter of a second to import

    metric = BLEU(lowercase=lowercase)
    return Score(metric.corpus_score(texts, [references]).score, str(metric.get_signature()))


def tokenised_bleu(texts: Sequence[str], references: Sequence[str], language: str) -> Score:
    """BLEU of lowercased, tokenised texts, which is what papers on Multi30k report.

    Their figures are of Moses' words (`lowercased_words`), which sacrebleu is told to leave as they are.
    """
    from sacrebleu import BLEU

    metric = BLEU(lowercase=True, tokenize="none", force=True)
    split = [[" ".join(lowercased_words(text, language)) for text in side] for side in (texts, references)]
    score = metric.corpus_score(split[0], [split[1]]).score
    return Score(score, f"{metric.get_signature()}|words:moses-{language}")


def chrf(texts: Sequence[str], references: Sequence[str]) -> Score:
    """chrF (Popovic 2015) by sacrebleu."""
    from sacrebleu import CHRF

    metric = CHRF()
    return Score(metric.corpus_score(texts, [references]).score, str(metric.get_signature()))
