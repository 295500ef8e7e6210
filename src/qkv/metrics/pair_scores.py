"""All scores of predicted texts against references, as `qkv evaluate` reports them."""

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.metrics.rouge import ROUGE_SIGNATURE, rouge_scores
from qkv.metrics.text_metrics import (
    MetricValue,
    bleu,
    character_error_rate,
    chrf,
    exact_match,
    phoneme_error_rate,
    tokenised_bleu,
    word_error_rate,
)

# Range of source words of each bucket, chosen so that the Multi30k test sets fill every one.
BUCKETS = ((1, 7), (8, 9), (10, 11), (12, 13), (14, 16), (17, 20), (21, None))


@dataclass(frozen=True)
class Bucket:
    """Tokenized BLEU of the pairs whose sources have between `least` and `most` words (None: no limit)."""

    least: int
    most: int | None
    pairs: int
    bleu: float


def pair_scores(texts: Sequence[str], references: Sequence[str], language: str = "") -> dict[str, MetricValue]:
    """Score texts against references; tokenized BLEU needs the language of the references."""
    scores = {
        "exact": MetricValue(exact_match(texts, references)),
        "cer": MetricValue(character_error_rate(texts, references)),
        "bleu": bleu(texts, references),
        "bleu_lowercased": bleu(texts, references, lowercase=True),
        "chrf": chrf(texts, references),
    }
    if language:
        scores["bleu_tokenised"] = tokenised_bleu(texts, references, language)
    return scores | {
        name: MetricValue(value, ROUGE_SIGNATURE) for name, value in rouge_scores(texts, references).items()
    }


def pronunciation_scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, MetricValue]:
    """Score one prediction per word against all listed pronunciations of the word."""
    return {
        "per": MetricValue(phoneme_error_rate(predictions, references)),
        "wer": MetricValue(word_error_rate(predictions, references)),
    }


def bleu_by_length(
    texts: Sequence[str], sources: Sequence[str], references: Sequence[str], language: str
) -> tuple[Bucket, ...]:
    """Return tokenized BLEU by source length; empty buckets are omitted."""
    buckets = []
    lengths = [len(source.split()) for source in sources]
    for least, most in BUCKETS:
        rows = [row for row, length in enumerate(lengths) if least <= length and (most is None or length <= most)]
        if rows:
            score = tokenised_bleu([texts[row] for row in rows], [references[row] for row in rows], language)
            buckets.append(Bucket(least, most, len(rows), score.value))
    return tuple(buckets)
