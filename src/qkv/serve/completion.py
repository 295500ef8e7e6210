"""Completions: continuations of prompts, with stop sequences, log-probabilities and streams of text."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.generation import Request, Sampling
from qkv.generation.continuous_batching import ActiveRow
from qkv.pipelines.generator import Generator
from qkv.pipelines.text_stream import TextStream
from qkv.serve.decoding import Chunk, DecodedSequence, ScoredToken, TokenBatch
from qkv.serve.worker import MAIN, DecodingJob


@dataclass(frozen=True)
class CompletionOptions:
    """Options of all continuations of a request."""

    max_new_tokens: int
    sampling: Sampling
    n: int = 1  # samples of each prompt
    alternatives: int = 0  # most likely tokens to return for each token
    scores: bool = False  # whether log-probabilities are returned
    stop: tuple[str, ...] = ()
    stream: bool = False

    @property
    def incremental(self) -> bool:
        """Whether the text is needed before the sequence is finished, or token by token."""
        return self.stream or self.scores or bool(self.stop)


class Continuation:
    """The text of a sequence so far: ends at a stop sequence, and is returned piece by piece."""

    def __init__(self, generator: Generator, prompt: Sequence[int], stop: tuple[str, ...]) -> None:
        self._stream, self._stop = TextStream(generator.tokenizer, prompt), stop
        self.text, self.tokens, self.stopped = "", list[ScoredToken](), False
        self._returned, self._returned_tokens = 0, 0

    def append(self, token: int, log_p: float, alternatives: dict[int, float]) -> None:
        """Append a token."""
        self.tokens.append(ScoredToken(token, log_p, alternatives, len(self.text)))
        self._extend(self._stream.append(token) or "")

    def end(self) -> None:
        """Append the text of a last, incomplete character."""
        if not self.stopped:
            self._extend(self._stream.rest())

    def _extend(self, piece: str) -> None:
        begin = max(0, len(self.text) + 1 - max(map(len, self._stop), default=1))
        self.text += piece
        cuts = [at for stop in self._stop if (at := self.text.find(stop, begin)) >= 0]
        if cuts:
            self.text, self.stopped = self.text[: min(cuts)], True
            self.tokens = [token for token in self.tokens if token.offset < min(cuts)]

    def take(self, *, final: bool) -> tuple[str, list[ScoredToken]]:
        """Return the new text and the tokens that begin in it; text that may begin a stop sequence is held back."""
        end = len(self.text) if final else len(self.text) - self._held_back()
        text, tokens = self.text[self._returned : end], self.tokens[self._returned_tokens :]
        if not final:
            tokens = [token for token in tokens if token.offset < end]
        self._returned, self._returned_tokens = end, self._returned_tokens + len(tokens)
        return text, tokens

    def _held_back(self) -> int:
        most = min(len(self.text) - self._returned, max(map(len, self._stop), default=1) - 1)
        ends = (self.text[len(self.text) - length :] for length in range(most, 0, -1))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self._stop)), 0)


class CompletionSequence(DecodedSequence):
    """One sample of one prompt."""

    def __init__(self, job: "CompletionJob", index: int, prompt: Sequence[int]) -> None:
        super().__init__(job)
        self._completion, self._index, self._prompt = job, index, prompt
        options = job.options
        self._continuation = Continuation(job.generator, prompt, options.stop) if options.incremental else None
        self._seen = 0  # tokens of the row that were appended

    def update(self, row: ActiveRow, *, finished: bool) -> bool:
        end, options = self._completion.generator.end, self._completion.options
        ended = finished and end is not None and row.tokens[-1] == end
        tokens = row.tokens[:-1] if ended else row.tokens
        reason = "length" if len(tokens) >= options.max_new_tokens else "stop"
        if self._continuation is None:
            if finished:
                text = self._completion.generator.continuation(self._prompt, tokens)
                self._completion.collect(Chunk(self._index, text, [], reason, len(tokens)))
            return finished
        continuation = self._continuation
        for number in range(self._seen, len(tokens)):
            continuation.append(tokens[number], row.log_p[number], row.alternatives[number])
            self._seen = number + 1
            if continuation.stopped:
                break
        if finished:
            continuation.end()
        done = finished or continuation.stopped
        if done or options.stream:
            text, scored = continuation.take(final=done)
            reason = "stop" if continuation.stopped else reason
            chunk = Chunk(self._index, text, scored, reason if done else None, self._seen)
            if done or text or scored:
                self._completion.collect(chunk)
        return done


class CompletionJob(DecodingJob):
    """The continuations of a request: a list of finished chunks, or with `stream` a queue of chunks and a last None.

    As in `Generator`, the random numbers of a sample depend on the seed and the indices of its prompt and its sample.
    """

    key = MAIN

    def __init__(self, generator: Generator, prompts: Sequence[Sequence[int]], options: CompletionOptions) -> None:
        super().__init__(len(prompts) * options.n)
        self.generator, self.options, self._prompts = generator, options, prompts
        self.chunks: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue()
        self._finished: dict[int, Chunk] = {}

    def start(self, batch: Any) -> None:
        assert isinstance(batch, TokenBatch)
        options = self.options
        for number, prompt in enumerate(self._prompts):
            request = Request(
                prompt, options.max_new_tokens, row_id=number, sampling=options.sampling,
                alternatives=options.alternatives,
            )  # fmt: skip
            for copy in range(options.n):
                batch.add(CompletionSequence(self, number * options.n + copy, prompt), request, copy)

    def collect(self, chunk: Chunk) -> None:
        """Store or send a chunk; the last one of the last sequence finishes the job."""
        if self.options.stream:
            self.in_loop(self.chunks.put_nowait, chunk)
        if chunk.finish_reason is not None:
            self._finished[chunk.index] = chunk
        if len(self._finished) == self.size:
            self.finish([self._finished[index] for index in range(self.size)])
            if self.options.stream:
                self.in_loop(self.chunks.put_nowait, None)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self.in_loop(self.chunks.put_nowait, error)
