"""Evaluation of pronunciations against a dictionary with several variants per word."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qkv.datasets.pair import Pair
from qkv.experiments.results import Bucket
from qkv.metrics import Score, phoneme_error_rate, word_error_rate
from qkv.pipelines.output import Answer


@dataclass(frozen=True)
class Report:
    """The scores of a model on the words of a dictionary."""

    pairs: int  # entries of the dictionary
    words: int  # distinct words
    per: float
    wer: float
    beam: int
    seconds: float
    mistakes: tuple[tuple[str, str, str], ...]  # (word, prediction, listed pronunciations), the first few

    by_length: ClassVar[tuple[Bucket, ...]] = ()  # the sources are single words

    @property
    def answers(self) -> int:
        """Number of predictions."""
        return self.words

    def scores(self) -> dict[str, Score]:
        """Return every score by name."""
        return {"per": Score(self.per), "wer": Score(self.wer)}


def group_by_word(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    """Return the pronunciations of each word, in the order of the pairs."""
    variants: dict[str, list[str]] = {}
    for pair in pairs:
        variants.setdefault(pair.source, []).append(pair.target)
    return variants


def score_answers(
    answers: Sequence[Answer], pairs: Sequence[Pair], *, beam: int = 1, mistakes: int = 5, seconds: float = 0.0
) -> Report:
    """Score one answer per distinct word, in the order of `group_by_word`."""
    variants = group_by_word(pairs)
    predictions, references = [answer.text for answer in answers], list(variants.values())
    wrong = (
        (word, prediction, " | ".join(listed))
        for (word, listed), prediction in zip(variants.items(), predictions, strict=True)
        if prediction.split() not in [reference.split() for reference in listed]
    )
    return Report(
        pairs=len(pairs),
        words=len(variants),
        per=phoneme_error_rate(predictions, references),
        wer=word_error_rate(predictions, references),
        beam=beam,
        seconds=seconds,
        mistakes=tuple(wrong)[:mistakes],
    )
