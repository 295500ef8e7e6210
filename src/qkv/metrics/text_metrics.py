"""Metrics of texts against references, and all of them together as `qkv evaluate` reports them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from qkv.metrics.intervals import (
    MIN_RESAMPLED,
    RESAMPLES,
    Interval,
    percentile_interval,
    proportion_interval,
    ratio_interval,
)
from qkv.metrics.rouge import ROUGE_SIGNATURE, rouge_scores

MAX_NGRAM = 4  # of BLEU
# Range of source words of each bucket, chosen so that the Multi30k test sets fill every one.
BUCKETS = ((1, 7), (8, 9), (10, 11), (12, 13), (14, 16), (17, 20), (21, None))


@dataclass(frozen=True)
class MetricValue:
    """A metric value, and the signature of its settings."""

    value: float
    signature: str = ""  # empty for metrics without settings


def exact_match(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return the fraction of texts that equal their reference (NaN without any)."""
    if not references:
        return float("nan")
    return sum(text == reference for text, reference in zip(texts, references, strict=True)) / len(references)


def exact_captions(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the fraction of texts that equal one of their references (NaN without any)."""
    matches = [text in captions for text, captions in zip(texts, references, strict=True)]
    return sum(matches) / len(matches) if matches else float("nan")


def character_error_rate(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return the edit distance per reference character over the whole corpus (NaN without any)."""
    errors = sum(edit_distance(text, reference) for text, reference in zip(texts, references, strict=True))
    characters = sum(map(len, references))
    return errors / characters if characters else float("nan")


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Return the Levenshtein distance, with the bit-parallel algorithm of Myers (1999).

    Two integers with a bit per element of the shorter sequence hold the positive and negative differences between
    adjacent cells of a column of the distance table; each element of the longer sequence advances the whole column.
    """
    if left == right or not left or not right:
        return 0 if left == right else max(len(left), len(right))
    short, long = sorted((left, right), key=len)
    matches: dict[Hashable, int] = {}  # bit mask of the indices of each element
    for index, element in enumerate(short):
        matches[element] = matches.get(element, 0) | 1 << index
    mask, last = (1 << len(short)) - 1, 1 << len(short) - 1
    vp, vn, distance = mask, 0, len(short)  # vertical differences of +1 and -1
    for element in long:
        match = matches.get(element, 0)
        xv = match | vn
        xh = ((match & vp) + vp ^ vp) | match
        hp, hn = vn | ~(xh | vp) & mask, vp & xh  # horizontal differences of +1 and -1
        distance += bool(hp & last) - bool(hn & last)
        hp, hn = hp << 1 | 1, hn << 1
        vp, vn = (hn | ~(xv | hp)) & mask, hp & xv & mask
    return distance


def phoneme_error_rate(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the edit distance per phoneme to the closest reference of each word (NaN without any).

    A pronunciation is a string of phonemes separated by spaces: "K AE1 T". A dictionary may list several per word; the
    first of the closest ones counts, as is usual for grapheme-to-phoneme models (Yao and Zweig 2015).
    """
    errors = phonemes = 0
    for prediction, variants in zip(predictions, references, strict=True):
        distances = [(edit_distance(prediction.split(), variant.split()), len(variant.split())) for variant in variants]
        distance, length = min(distances, key=lambda pair: pair[0])
        errors, phonemes = errors + distance, phonemes + length
    return errors / phonemes if phonemes else float("nan")


def pronunciation_error_rate(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the fraction of pronunciations that match none of their references (NaN without any)."""
    wrong = sum(
        prediction.split() not in [variant.split() for variant in variants]
        for prediction, variants in zip(predictions, references, strict=True)
    )
    return wrong / len(references) if references else float("nan")


def bleu(texts: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> MetricValue:
    """Return BLEU (Papineni et al. 2002) from sacrebleu (Post 2018) on raw text with its 13a tokenizer."""
    from sacrebleu import BLEU  # takes a quarter of a second to import

    return _corpus_score(BLEU(lowercase=lowercase), texts, [references])


def confidence_intervals(texts: Sequence[str], references: Sequence[str]) -> dict[str, Interval]:
    """Return the 95 % confidence intervals of exact match (Wilson), and of CER, BLEU and chrF (bootstrap)."""
    from sacrebleu import BLEU, CHRF

    if not texts:
        return {}
    pairs = [*zip(texts, references, strict=True)]
    intervals: dict[str, Interval | None] = {
        "exact": proportion_interval(sum(text == reference for text, reference in pairs), len(pairs)),
        "cer": ratio_interval([edit_distance(*pair) for pair in pairs], [*map(len, references)]),
    }
    if len(pairs) >= MIN_RESAMPLED:
        for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
            intervals[name] = _resampled_interval(metric, texts, references)
    return {name: interval for name, interval in intervals.items() if interval is not None}


def _resampled_interval(metric: Any, texts: Sequence[str], references: Sequence[str]) -> Interval:
    """Return the middle 95 % of the scores of the resamples of sacrebleu.

    Its own interval, the mean plus and minus half their width, can exceed 100; it fails if the scores of some resamples
    are 0, which have another type than the rest.
    """
    from sacrebleu.significance import _bootstrap_resample

    statistics = metric._extract_corpus_statistics(texts, [references])
    return percentile_interval([float(x.score) for x in _bootstrap_resample(statistics, metric, RESAMPLES)[1]])


def sentence_chrf(text: str, reference: str) -> float:
    """Return chrF of one text, from 0 to 100."""
    return float(_chrf().sentence_score(text, [reference]).score)


@cache
def _chrf() -> Any:
    from sacrebleu import CHRF

    return CHRF()


def tokenised_bleu(texts: Sequence[str], references: Sequence[str], language: str) -> MetricValue:
    """Return BLEU of lowercased texts tokenized by Moses, as reported in papers on Multi30k."""
    from sacrebleu import BLEU

    metric = BLEU(lowercase=True, tokenize="none", force=True)
    tokenized = [[" ".join(moses_tokens(text.lower(), language)) for text in side] for side in (texts, references)]
    score = metric.corpus_score(tokenized[0], [tokenized[1]]).score
    return MetricValue(score, f"{metric.get_signature()}|words:moses-{language}")


def moses_tokens(text: str, language: str) -> list[str]:
    """Normalize the punctuation of a text and tokenize it like Moses ("en", "de", ...)."""
    normalizer, tokenizer = _moses(language)
    return tokenizer.tokenize(normalizer.normalize(text), escape=False)


@cache
def _moses(language: str) -> tuple[Any, Any]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # takes half a second to import

    return MosesPunctNormalizer(language), MosesTokenizer(language)


def caption_bleu(texts: Sequence[str], references: Sequence[Sequence[str]], order: int = 4) -> MetricValue:
    """Return sacreBLEU against all references of each text, whose number may vary, of n-grams up to `order`."""
    from sacrebleu import BLEU

    most = max(map(len, references), default=1)
    columns: Any = [  # None for a missing reference
        [captions[index] if index < len(captions) else None for captions in references] for index in range(most)
    ]
    return _corpus_score(BLEU(max_ngram_order=order), texts, columns)


def caption_scores(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, MetricValue]:
    """Score captions against all references of each: exact match, BLEU, and BLEU-1 to BLEU-3."""
    shorter = {f"bleu_{order}": caption_bleu(texts, references, order) for order in (1, 2, 3)}
    exact = MetricValue(exact_captions(texts, references))
    return {"exact": exact, "bleu": caption_bleu(texts, references), **shorter}


def chrf(texts: Sequence[str], references: Sequence[str]) -> MetricValue:
    """Return chrF (Popovic 2015) from sacrebleu."""
    from sacrebleu import CHRF

    return _corpus_score(CHRF(), texts, [references])


def _corpus_score(metric: Any, texts: Sequence[str], references: Sequence[Sequence[str | None]]) -> MetricValue:
    return MetricValue(metric.corpus_score(texts, references).score, str(metric.get_signature()))


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
        "wer": MetricValue(pronunciation_error_rate(predictions, references)),
    }


def bleu_by_length(
    texts: Sequence[str], sources: Sequence[str], references: Sequence[str], language: str
) -> tuple[Bucket, ...]:
    """Return tokenized BLEU by source length.

    Empty buckets are omitted, as are those without a reference of at least MAX_NGRAM tokens: BLEU of such texts, e.g.
    single words, is 0 even if all of them are correct.
    """
    buckets = []
    lengths = [len(source.split()) for source in sources]
    for least, most in BUCKETS:
        rows = [row for row, length in enumerate(lengths) if least <= length and (most is None or length <= most)]
        if any(len(moses_tokens(references[row], language)) >= MAX_NGRAM for row in rows):
            score = tokenised_bleu([texts[row] for row in rows], [references[row] for row in rows], language)
            buckets.append(Bucket(least, most, len(rows), score.value))
    return tuple(buckets)
