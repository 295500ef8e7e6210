"""How close texts are to their references."""

from collections.abc import Hashable, Sequence
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


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and substitutions that turn one sequence into the other (Levenshtein).

    A column of the table of distances is kept as the bits at which it rises and falls, and all of it is moved on at
    once (Myers 1999): a step for each element of one sequence, in numbers with a bit for each of the other.
    """
    if left == right or not left or not right:
        return 0 if left == right else max(len(left), len(right))
    short, long = sorted((left, right), key=len)
    places: dict[Hashable, int] = {}
    for place, one in enumerate(short):
        places[one] = places.get(one, 0) | 1 << place
    every, last = (1 << len(short)) - 1, 1 << len(short) - 1
    rises, falls, distance = every, 0, len(short)
    for one in long:
        here = places.get(one, 0)
        straight = here | falls
        across = ((here & rises) + rises ^ rises) | here
        up, down = falls | ~(across | rises) & every, rises & across
        distance += bool(up & last) - bool(down & last)
        up, down = up << 1 | 1, down << 1
        rises, falls = (down | ~(straight | up)) & every, up & straight & every
    return distance


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
