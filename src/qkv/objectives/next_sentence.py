"""Pairs of passages of which the second follows the first in half of the cases (Devlin et al. 2019).

The texts of all documents stand one after the other as tokens, and a passage is a range of places in them: nothing is
copied, and pairs of millions of tokens are drawn in seconds.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from qkv.errors import InputError

Sentences = Sequence[int]  # of a document: where each begins, and where the last one ends


class Passages(NamedTuple):
    """Two passages; `follows` is what the model has to say of them."""

    first: range
    second: range
    follows: bool


def sentence_pairs(documents: Sequence[Sentences], longest: int, chance: Random) -> Iterator[Passages]:
    """Every document once, in pairs of at most `longest` tokens together.

    A run of sentences of about that length is cut in two; heads or tails, its second half stays, or a passage from
    another document takes its place, of about the same length, so that this does not give it away, and its own
    sentences are used again in the next run. A single sentence that is left over makes no pair: it could only be
    followed by a stranger, and there would be more of these.
    """
    if longest < 2:
        raise InputError(f"a pair needs room for two tokens at least, not {longest}")
    if sum(len(document) > 1 for document in documents) < 2:
        raise InputError("a passage that does not follow comes from another document: at least two are needed")
    for number, document in enumerate(documents):
        at = 0
        while (end := _end_of_run(document, at, longest, least=2)) - at > 1:
            cut = chance.randint(at + 1, end - 1)
            first, second = range(document[at], document[cut]), range(document[cut], document[end])
            follows = chance.random() < 0.5
            if not follows:
                second = _stranger(documents, number, len(second), chance)
            yield Passages(*_fitted(first, second, longest, chance), follows)
            at = end if follows else cut


def _end_of_run(document: Sentences, at: int, longest: int, least: int) -> int:
    """Where a run from this sentence on ends: it has so many tokens or more, and at `least` so many sentences."""
    last = len(document) - 1
    end = min(at + least, last)
    while end < last and document[end] - document[at] < longest:
        end += 1
    return end


def _stranger(documents: Sequence[Sentences], but: int, length: int, chance: Random) -> range:
    """A passage of about this length from any other document."""
    while True:
        number = chance.randrange(len(documents))
        document = documents[number]
        if number != but and len(document) > 1:
            at = chance.randrange(len(document) - 1)
            while at > 0 and document[-1] - document[at] < length:
                at -= 1
            return range(document[at], document[_end_of_run(document, at, length, least=1)])


def _fitted(first: range, second: range, longest: int, chance: Random) -> tuple[range, range]:
    """The longer of the two loses tokens at either end until both fit."""
    sides = [first, second]
    for _ in range(len(first) + len(second) - longest):
        longer = int(len(sides[1]) > len(sides[0]))
        sides[longer] = sides[longer][1:] if chance.getrandbits(1) else sides[longer][:-1]
    return sides[0], sides[1]
