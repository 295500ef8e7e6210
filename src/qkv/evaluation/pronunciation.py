"""How well a model says words that it has not seen, by a dictionary that may list several ways of saying one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qkv.data.pair import Pair
from qkv.evaluation.record import Bucket
from qkv.metrics import Score, phoneme_error_rate, word_error_rate
from qkv.tasks.answer import Answer


@dataclass(frozen=True)
class Report:
    """The scores of a model on the words of a dictionary."""

    pairs: int  # entries of the dictionary
    words: int  # of which each may have several entries
    per: float
    wer: float
    beam: int
    seconds: float
    mistakes: tuple[tuple[str, str, str], ...]  # (word, what was said, the ways that are listed), the first few

    by_length: ClassVar[tuple[Bucket, ...]] = ()  # the sources are single words

    @property
    def answers(self) -> int:
        """How many words were said."""
        return self.words

    def scores(self) -> dict[str, Score]:
        """Every score by its name."""
        return {"per": Score(self.per), "wer": Score(self.wer)}


def ways_of(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    """Each word with the ways of saying it, in the order of the pairs."""
    ways: dict[str, list[str]] = {}
    for pair in pairs:
        ways.setdefault(pair.source, []).append(pair.target)
    return ways


def judge(
    answers: Sequence[Answer], pairs: Sequence[Pair], *, beam: int = 1, mistakes: int = 5, seconds: float = 0.0
) -> Report:
    """Compare one answer for each distinct word, in the order of `ways_of`, with what is listed."""
    ways = ways_of(pairs)
    said, listed = [one.text for one in answers], list(ways.values())
    wrong = (
        (word, one, " | ".join(known))
        for (word, known), one in zip(ways.items(), said, strict=True)
        if one.split() not in [way.split() for way in known]
    )
    return Report(
        pairs=len(pairs),
        words=len(ways),
        per=phoneme_error_rate(said, listed),
        wer=word_error_rate(said, listed),
        beam=beam,
        seconds=seconds,
        mistakes=tuple(wrong)[:mistakes],
    )
