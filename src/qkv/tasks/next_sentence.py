"""Segment pairs for next-sentence prediction (Devlin et al. 2019).

The tokens of all documents are concatenated, and a segment is a range of positions in them: no tokens are copied, and
pairs from millions of tokens are sampled in seconds.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from qkv.errors import InputError

Sentences = Sequence[int]  # of a document: the start of each sentence, and the end of the last


class SegmentPair(NamedTuple):
    """Two segments; `follows` is the label."""

    first: range
    second: range
    follows: bool


def sentence_pairs(documents: Sequence[Sentences], max_tokens: int, rng: Random) -> Iterator[SegmentPair]:
    """Yield pairs of at most `max_tokens` tokens that cover every document once.

    A run of sentences of about that length is split in two. With probability 0.5 its second half is replaced by a
    random segment of another document, of about the same length so that the length does not reveal the label, and the
    replaced sentences are used again in the next run. A single remaining sentence is dropped: it could only be paired
    with a random segment, which would unbalance the labels.
    """
    if max_tokens < 2:
        raise InputError(f"a pair needs at least two tokens, not {max_tokens}")
    if sum(len(document) > 1 for document in documents) < 2:
        raise InputError("next-sentence prediction needs at least two documents")
    for index, document in enumerate(documents):
        start = 0
        while (end := _end_of_run(document, start, max_tokens, min_sentences=2)) - start > 1:
            cut = rng.randint(start + 1, end - 1)
            first, second = range(document[start], document[cut]), range(document[cut], document[end])
            follows = rng.random() < 0.5
            if not follows:
                second = _random_segment(documents, index, len(second), rng)
            yield SegmentPair(*_truncate(first, second, max_tokens, rng), follows)
            start = end if follows else cut


def _end_of_run(document: Sentences, start: int, min_tokens: int, min_sentences: int) -> int:
    """Return the end of the shortest run from sentence `start` with enough tokens and sentences."""
    last = len(document) - 1
    end = min(start + min_sentences, last)
    while end < last and document[end] - document[start] < min_tokens:
        end += 1
    return end


def _random_segment(documents: Sequence[Sentences], exclude: int, length: int, rng: Random) -> range:
    """Return a random segment of about this length from any other document."""
    while True:
        index = rng.randrange(len(documents))
        document = documents[index]
        if index != exclude and len(document) > 1:
            start = rng.randrange(len(document) - 1)
            while start > 0 and document[-1] - document[start] < length:
                start -= 1
            return range(document[start], document[_end_of_run(document, start, length, min_sentences=1)])


def _truncate(first: range, second: range, max_tokens: int, rng: Random) -> tuple[range, range]:
    """Remove tokens from a random end of the longer segment until both fit."""
    segments = [first, second]
    for _ in range(len(first) + len(second) - max_tokens):
        longer = int(len(segments[1]) > len(segments[0]))
        segments[longer] = segments[longer][1:] if rng.getrandbits(1) else segments[longer][:-1]
    return segments[0], segments[1]
