"""Decoding batches of the server: sequences that join and leave a batch at any step."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qkv.generation import Hypothesis, Request
from qkv.generation.beam_batching import BeamDecoder
from qkv.generation.continuous_batching import ActiveRow, TokenDecoder
from qkv.serve.worker import MAIN, Batch, DecodingJob, Job


class DecodedSequence:
    """One sequence of a job while it is decoded."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def update(self, row: ActiveRow, *, finished: bool) -> bool:
        """Take the new tokens of a row; return whether the sequence needs no more."""
        raise NotImplementedError


class TokenBatch(Batch):
    """Sequences decoded by greedy search or sampling, a row each."""

    def __init__(self, decoder: TokenDecoder, count_tokens: Callable[[int], None]) -> None:
        self._decoder, self._count_tokens = decoder, count_tokens
        self._sequences: dict[int, DecodedSequence] = {}
        self._next = 0

    @property
    def size(self) -> int:
        return len(self._sequences)

    def add(self, sequence: DecodedSequence, request: Request, copy: int = 0) -> None:
        """Let a sequence join as soon as a row is free."""
        self._sequences[self._next] = sequence
        self._decoder.submit(self._next, request, copy)
        self._next += 1

    def advance(self) -> list[Job]:
        finished = self._decoder.advance()
        going = list(self._decoder.active)
        self._count_tokens(len(finished) + len(going))
        jobs = [self._end(row) for row in finished if self._sequences[row.index].update(row, finished=True)]
        for row in going:
            sequence = self._sequences[row.index]
            if sequence.job.cancelled or sequence.update(row, finished=False):
                self._decoder.remove(row)
                jobs.append(self._end(row))
        return jobs

    def _end(self, row: ActiveRow) -> Job:
        return self._sequences.pop(row.index).job

    def fail(self, error: Exception) -> list[Job]:
        jobs = [sequence.job for sequence in self._sequences.values()]
        self._sequences.clear()
        for job in jobs:
            job.fail(error)
        return jobs


class BeamBatch(Batch):
    """Sequences decoded by beam search, with the same number of beams and length penalty."""

    def __init__(self, decoder: BeamDecoder) -> None:
        self._decoder = decoder
        self._sequences: dict[int, TranslatedText] = {}
        self._next = 0

    @property
    def size(self) -> int:
        return len(self._sequences)

    def add(self, sequence: "TranslatedText", request: Request) -> None:
        """Let a sequence join as soon as its rows are free."""
        self._sequences[self._next] = sequence
        self._decoder.submit(self._next, request)
        self._next += 1

    def advance(self) -> list[Job]:
        jobs: list[Job] = []
        for index, hypotheses in self._decoder.advance():
            sequence = self._sequences.pop(index)
            sequence.finish(hypotheses)
            jobs.append(sequence.job)
        for group in list(self._decoder.active):
            if self._sequences[group.index].job.cancelled:
                self._decoder.remove(group)
                jobs.append(self._sequences.pop(group.index).job)
        return jobs

    def fail(self, error: Exception) -> list[Job]:
        jobs = [sequence.job for sequence in self._sequences.values()]
        self._sequences.clear()
        for job in jobs:
            job.fail(error)
        return jobs


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search that all sequences of a batch share."""

    num_beams: int = 1
    length_penalty: float = 1.0

    @property
    def key(self) -> Hashable:
        """The key of the batch: greedy searches need no options."""
        return MAIN if self.num_beams == 1 else self


class TranslatedText(DecodedSequence):
    """One text of a translation job."""

    def __init__(self, job: "TranslationJob", index: int) -> None:
        super().__init__(job)
        self._translation, self._index = job, index

    def update(self, row: ActiveRow, *, finished: bool) -> bool:
        if finished:
            self.finish([row.hypothesis(self._translation.end, self._translation.search.length_penalty)])
        return finished

    def finish(self, hypotheses: list[Hypothesis]) -> None:
        """Set the hypotheses, best first."""
        self._translation.collect(self._index, hypotheses)


class TranslationJob(DecodingJob):
    """Texts to translate; the result is a list of hypotheses for each."""

    def __init__(self, requests: Sequence[Request], search: SearchOptions, end: int | None) -> None:
        super().__init__(len(requests))
        self.search, self.end, self.key = search, end, search.key
        self._requests, self._results = requests, dict[int, list[Hypothesis]]()

    def start(self, batch: Any) -> None:
        for index, request in enumerate(self._requests):
            batch.add(TranslatedText(self, index), request)

    def collect(self, index: int, hypotheses: list[Hypothesis]) -> None:
        """Store the hypotheses of a text; the last one finishes the job."""
        self._results[index] = hypotheses
        if len(self._results) == len(self._requests):
            self.finish([self._results[number] for number in range(len(self._requests))])


@dataclass
class ScoredToken:
    """A generated token with its log-probability and those of the most likely ones."""

    token: int
    log_p: float | None
    alternatives: dict[int, float]
    offset: int  # of its text in the answer


@dataclass
class Chunk:
    """New text of a choice, with the tokens that begin in it."""

    index: int
    text: str
    tokens: list[ScoredToken] = field(default_factory=list)
    finish_reason: str | None = None
    new_tokens: int = 0  # generated for the choice so far
