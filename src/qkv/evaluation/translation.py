"""How well a translator does on pairs it has not seen."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qkv.data.pair import Pair
from qkv.errors import InputError
from qkv.metrics import alignment_accuracy, character_error_rate, corpus_scores, exact_match
from qkv.tasks.answer import Answer
from qkv.tasks.translator import Search, Translator


@dataclass(frozen=True)
class Report:
    """The scores of a translator on a set of pairs."""

    pairs: int
    exact: float
    cer: float
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    alignment: float | None  # None where no gold alignment is known
    beam: int
    seconds: float
    mistakes: tuple[tuple[str, str, str], ...]  # (source, answer, reference), the first few


def evaluate(
    translator: Translator,
    pairs: Sequence[Pair],
    *,
    beam: int = 1,
    mistakes: int = 5,
    progress: Callable[[int], None] = lambda _: None,
) -> Report:
    """Translate the sources and compare with the targets; `progress` is told how many are done."""
    if not pairs:
        raise InputError("there are no pairs to evaluate on")
    began = time.monotonic()
    aligned = all(pair.gold is not None for pair in pairs)
    found: dict[int, Answer] = {}
    sources = [pair.source for pair in pairs]
    for index, answers in translator.stream(sources, Search(beam), attention=aligned):
        found[index] = answers[0]
        progress(len(found))
    texts = [found[index].text for index in range(len(pairs))]
    references = [pair.target for pair in pairs]
    scores = corpus_scores(texts, references)
    return Report(
        pairs=len(pairs),
        exact=exact_match(texts, references),
        cer=character_error_rate(texts, references),
        bleu=float(scores["bleu"]),
        bleu_signature=str(scores["bleu_signature"]),
        chrf=float(scores["chrf"]),
        chrf_signature=str(scores["chrf_signature"]),
        alignment=_alignment([found[index] for index in range(len(pairs))], pairs) if aligned else None,
        beam=beam,
        seconds=time.monotonic() - began,
        mistakes=tuple(
            (pair.source, text, pair.target) for pair, text in zip(pairs, texts, strict=True) if text != pair.target
        )[:mistakes],
    )


def _alignment(answers: Sequence[Answer], pairs: Sequence[Pair]) -> float | None:
    """Gold alignments are by characters: they can be compared only where tokens are characters too."""
    by_characters = all(
        answer.maps and len(answer.maps[0].columns) == len(pair.source)
        for answer, pair in zip(answers, pairs, strict=True)
    )
    if not by_characters:
        return None
    return alignment_accuracy(
        (answer.alignment, pair.gold)
        for answer, pair in zip(answers, pairs, strict=True)
        if answer.alignment is not None and pair.gold is not None
    )
