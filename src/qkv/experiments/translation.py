"""Evaluation of a translator on held-out pairs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qkv.datasets.pair import Pair
from qkv.datasets.tagged import Tagged
from qkv.errors import InputError
from qkv.experiments.results import Bucket
from qkv.generation import GenerationConfig
from qkv.metrics import (
    ROUGE_SIGNATURE,
    Score,
    alignment_accuracy,
    bleu,
    character_error_rate,
    chrf,
    exact_match,
    rouge_scores,
    tokenised_bleu,
)
from qkv.pipelines.output import Answer
from qkv.pipelines.translator import GREEDY, Translator

Progress = Callable[[int], None]
# Range of source words of each bucket, chosen so that the Multi30k test sets fill every one.
BUCKETS = ((1, 7), (8, 9), (10, 11), (12, 13), (14, 16), (17, 20), (21, None))


@dataclass(frozen=True)
class Report:
    """The scores of a translator on a set of pairs."""

    pairs: int
    exact: float
    cer: float
    bleu: float
    bleu_signature: str
    bleu_lowercased: float
    bleu_lowercased_signature: str
    bleu_tokenised: float | None  # as in papers on Multi30k; None if the target language is unknown
    bleu_tokenised_signature: str
    chrf: float
    chrf_signature: str
    rouge_1: float | None  # None, like the next two, unless requested
    rouge_2: float | None
    rouge_l: float | None
    rouge_signature: str
    alignment: float | None  # None without gold alignments
    by_length: tuple[Bucket, ...]
    beam: int
    seconds: float
    mistakes: tuple[tuple[str, str, str], ...]  # (source, answer, reference), the first few

    @property
    def answers(self) -> int:
        """Number of predictions."""
        return self.pairs

    def scores(self) -> dict[str, Score]:
        """Return every score by name."""
        scores = {
            "exact": Score(self.exact),
            "cer": Score(self.cer),
            "bleu": Score(self.bleu, self.bleu_signature),
            "bleu_lowercased": Score(self.bleu_lowercased, self.bleu_lowercased_signature),
            "chrf": Score(self.chrf, self.chrf_signature),
        }
        if self.bleu_tokenised is not None:
            scores["bleu_tokenised"] = Score(self.bleu_tokenised, self.bleu_tokenised_signature)
        for name, value in (("rouge_1", self.rouge_1), ("rouge_2", self.rouge_2), ("rouge_l", self.rouge_l)):
            if value is not None:
                scores[name] = Score(value, self.rouge_signature)
        if self.alignment is not None:
            scores["alignment"] = Score(self.alignment)
        return scores


def evaluate(
    translator: Translator,
    pairs: Sequence[Pair],
    *,
    config: GenerationConfig = GREEDY,
    language: str = "",
    rouge: bool = False,
    mistakes: int = 5,
    progress: Progress = lambda _: None,
) -> Report:
    """Translate the sources and score them against the targets, which are in `language`; with `rouge` also by ROUGE."""
    began = time.monotonic()
    aligned = all(pair.gold is not None for pair in pairs)
    answers = answer(translator, [pair.source_input for pair in pairs], config, attention=aligned, progress=progress)
    seconds = time.monotonic() - began
    return score_answers(
        answers, pairs, beam=config.num_beams, language=language, rouge=rouge, mistakes=mistakes, seconds=seconds
    )


def answer(
    translator: Translator,
    sources: Sequence[str | Tagged],
    config: GenerationConfig = GREEDY,
    *,
    attention: bool = False,
    progress: Progress = lambda _: None,
) -> list[Answer]:
    """Return the best answer to each source; `progress` is called with the number of finished ones."""
    if not sources:
        raise InputError("there are no pairs to evaluate on")
    best: dict[int, Answer] = {}
    for index, answers in translator.stream(sources, config, attention=attention):
        best[index] = answers[0]
        progress(len(best))
    return [best[index] for index in range(len(sources))]


def score_answers(
    answers: Sequence[Answer],
    pairs: Sequence[Pair],
    *,
    beam: int = 1,
    language: str = "",
    rouge: bool = False,
    mistakes: int = 5,
    seconds: float = 0.0,
) -> Report:
    """Score answers against the targets of their pairs; `rouge` adds ROUGE."""
    texts, references = [answer.text for answer in answers], [pair.target for pair in pairs]
    cased, lowercased = bleu(texts, references), bleu(texts, references, lowercase=True)
    tokenised = tokenised_bleu(texts, references, language) if language else None
    characters = chrf(texts, references)
    summaries = rouge_scores(texts, references) if rouge else {}
    aligned = all(pair.gold is not None for pair in pairs)
    return Report(
        pairs=len(pairs),
        exact=exact_match(texts, references),
        cer=character_error_rate(texts, references),
        bleu=cased.value,
        bleu_signature=cased.signature,
        bleu_lowercased=lowercased.value,
        bleu_lowercased_signature=lowercased.signature,
        bleu_tokenised=None if tokenised is None else tokenised.value,
        bleu_tokenised_signature="" if tokenised is None else tokenised.signature,
        chrf=characters.value,
        chrf_signature=characters.signature,
        rouge_1=summaries.get("rouge_1"),
        rouge_2=summaries.get("rouge_2"),
        rouge_l=summaries.get("rouge_l"),
        rouge_signature=ROUGE_SIGNATURE if summaries else "",
        alignment=_alignment(answers, pairs) if aligned else None,
        by_length=bleu_by_length(texts, pairs, language),
        beam=beam,
        seconds=seconds,
        mistakes=tuple(
            (pair.source, text, pair.target) for pair, text in zip(pairs, texts, strict=True) if text != pair.target
        )[:mistakes],
    )


def bleu_by_length(texts: Sequence[str], pairs: Sequence[Pair], language: str) -> tuple[Bucket, ...]:
    """Return tokenized BLEU by source length; empty buckets are omitted."""
    buckets = []
    for least, most in BUCKETS:
        inside = [
            (text, pair.target)
            for text, pair in zip(texts, pairs, strict=True)
            if least <= len(pair.source.split()) and (most is None or len(pair.source.split()) <= most)
        ]
        if inside:
            score = tokenised_bleu([text for text, _ in inside], [target for _, target in inside], language)
            buckets.append(Bucket(least, most, len(inside), score.value))
    return tuple(buckets)


def _alignment(answers: Sequence[Answer], pairs: Sequence[Pair]) -> float | None:
    """Return the alignment accuracy; None unless tokens are characters, as in the gold alignments."""
    by_characters = all(
        answer.attention and len(answer.attention[0].columns) == len(pair.source)
        for answer, pair in zip(answers, pairs, strict=True)
    )
    if not by_characters:
        return None
    return alignment_accuracy(
        (answer.alignment, pair.gold)
        for answer, pair in zip(answers, pairs, strict=True)
        if answer.alignment is not None and pair.gold is not None
    )
