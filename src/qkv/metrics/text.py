"""How close texts are to their references."""

from collections.abc import Sequence


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
    from sacrebleu import BLEU, CHRF  # takes a quarter of a second to import

    scores: dict[str, float | str] = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        scores[name] = metric.corpus_score(texts, [references]).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores
