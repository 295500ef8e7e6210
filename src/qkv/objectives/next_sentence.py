"""Pairs of passages of which the second follows the first in half of the cases (Devlin et al. 2019)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from qkv.errors import InputError

Sentence = Sequence[int]  # as tokens


@dataclass(frozen=True)
class Passages:
    """Two passages; `follows` is what the model has to say of them."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    follows: bool


def sentence_pairs(documents: Sequence[Sequence[Sentence]], longest: int, chance: Random) -> Iterator[Passages]:
    """Every document once, in pairs of at most `longest` tokens together.

    A run of sentences of about that length is cut in two; heads or tails, its second half stays, or a passage from
    another document takes its place, and its own sentences are used again in the next run. A single sentence that
    is left over makes no pair: it could only be followed by a stranger, and there would be more of these.
    """
    if longest < 2:
        raise InputError(f"a pair needs room for two tokens at least, not {longest}")
    if sum(any(map(len, document)) for document in documents) < 2:
        raise InputError("a passage that does not follow comes from another document: at least two are needed")
    for number, document in enumerate(documents):
        sentences = [sentence for sentence in document if sentence]
        at = 0
        while len(run := _run(sentences, at, longest)) > 1:
            cut = chance.randint(1, len(run) - 1)
            first, second = _joined(run[:cut]), _joined(run[cut:])
            follows = chance.random() < 0.5
            if not follows:
                second = _stranger(documents, number, longest - min(len(first), longest - 1), chance)
            yield Passages(*_fitted(first, second, longest, chance), follows)
            at += len(run) if follows else cut


def _run(sentences: Sequence[Sentence], at: int, longest: int) -> Sequence[Sentence]:
    """The sentences from there on until there are enough tokens, two of them at least if there are so many."""
    end, size = at, 0
    while end < len(sentences) and (size < longest or end - at < 2):
        size += len(sentences[end])
        end += 1
    return sentences[at:end]


def _stranger(documents: Sequence[Sequence[Sentence]], but: int, length: int, chance: Random) -> tuple[int, ...]:
    """A passage of about this length from any other document."""
    while True:
        number = chance.randrange(len(documents))
        sentences = [sentence for sentence in documents[number] if sentence]
        if number != but and sentences:
            return _joined(_run(sentences, chance.randrange(len(sentences)), length))


def _fitted(
    first: tuple[int, ...], second: tuple[int, ...], longest: int, chance: Random
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The longer of the two loses tokens at either end until both fit."""
    sides = [list(first), list(second)]
    while len(sides[0]) + len(sides[1]) > longest:
        sides[len(sides[1]) > len(sides[0])].pop(-chance.randrange(2))
    return tuple(sides[0]), tuple(sides[1])


def _joined(sentences: Sequence[Sentence]) -> tuple[int, ...]:
    return tuple(token for sentence in sentences for token in sentence)
