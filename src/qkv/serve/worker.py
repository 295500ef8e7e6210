"""The thread that runs one model for all requests: decoding batches, batches of texts, and single calls."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from qkv.errors import InputError
from qkv.serve.errors import RequestError, overloaded
from qkv.serve.metrics import Metrics

DEVICE = threading.Lock()  # models take turns: each step uses all cores
MAIN = ()  # key of the batch that keeps its memory when it is empty


class Job:
    """Work for one request; it is made in the event loop, and its result is awaited there."""

    def __init__(self, size: int) -> None:
        self.size = size  # sequences or texts
        self.cancelled = False  # the client is gone, or the time limit has passed
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[Any] = self._loop.create_future()

    def in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the event loop, which may have been closed."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            self.cancelled = True

    def finish(self, value: Any) -> None:
        """Set the result; called by the worker."""
        self.in_loop(self._set, value, None)

    def fail(self, error: BaseException) -> None:
        """Set the error; called by the worker."""
        self.in_loop(self._set, None, error)

    def _set(self, value: Any, error: BaseException | None) -> None:
        if self.result.done():
            return
        if error is None:
            self.result.set_result(value)
        else:
            self.result.set_exception(error)


class TextsJob(Job):
    """Inputs for a function from a list to a list; jobs with the same key are run together."""

    def __init__(self, key: Hashable, inputs: Sequence[Any], run: Callable[[list[Any]], Sequence[Any]]) -> None:
        super().__init__(len(inputs))
        self.key, self.inputs, self.run = key, list(inputs), run


class DecodingJob(Job, ABC):
    """Sequences for a decoding batch of the model."""

    key: Hashable  # of the batch

    @abstractmethod
    def start(self, batch: Any) -> None:
        """Submit the sequences to their batch; called by the worker."""


class Batch(ABC):
    """Sequences that are decoded together."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of sequences that are being decoded or wait for a row."""

    @abstractmethod
    def advance(self) -> list[Job]:
        """Decode one token of each sequence; return a job for each one that is finished or cancelled."""

    @abstractmethod
    def fail(self, error: Exception) -> list[Job]:
        """Give up all sequences; return a job for each."""


class Worker:
    """Runs one model in a thread."""

    def __init__(
        self,
        name: str,
        make_batch: Callable[[Hashable], Batch],
        metrics: Metrics,
        *,
        max_batch: int,
        max_queue: int,
    ) -> None:
        self.name, self._make_batch, self._metrics = name, make_batch, metrics
        self._max_batch, self._max_queue = max_batch, max_queue
        self._changed = threading.Condition()
        self._inbox: deque[Job] = deque()
        self._texts: deque[TextsJob] = deque()
        self._batches: dict[Hashable, Batch] = {}
        self._pending = 0  # sequences and texts that are not finished
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"model {name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the worker accepts jobs."""
        return self._thread.is_alive() and not self._closing

    def submit(self, job: Job) -> None:
        """Accept a job, or raise if the queue is full."""
        with self._changed:
            if not self.alive:
                raise RequestError(503, "the server is stopping", code="stopping")
            if self._pending + job.size > self._max_queue:
                raise overloaded(self.name, self._max_queue)
            self._pending += job.size
            self._metrics.queued.labels(self.name).set(self._pending)
            self._inbox.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Finish the accepted jobs, then end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._idle and not self._closing:
                    self._changed.wait()
                if self._idle:
                    return
                jobs, self._inbox = self._inbox, deque()
            for job in jobs:
                self._start(job)
            for key, batch in list(self._batches.items()):
                if batch.size:
                    self._advance(key, batch)
            if self._texts:
                self._run_texts()

    @property
    def _idle(self) -> bool:
        return not self._inbox and not self._texts and not any(batch.size for batch in self._batches.values())

    def _start(self, job: Job) -> None:
        if isinstance(job, TextsJob):
            self._texts.append(job)
            return
        assert isinstance(job, DecodingJob)
        try:
            if job.key not in self._batches:
                self._batches[job.key] = self._make_batch(job.key)
            job.start(self._batches[job.key])
        except Exception as error:
            job.fail(error)
            self._done(job.size)

    def _advance(self, key: Hashable, batch: Batch) -> None:
        """Decode one token of each sequence of a batch."""
        self._metrics.batch_size.labels(self.name).observe(min(batch.size, self._max_batch))
        try:
            with DEVICE:
                finished = batch.advance()
        except Exception as error:
            finished = batch.fail(error)
            del self._batches[key]  # its state is unknown
        self._done(len(finished))
        if not batch.size and key != MAIN:
            self._batches.pop(key, None)

    def _run_texts(self) -> None:
        """Run the first job, with the next ones of the same key up to the size of a batch."""
        jobs = [self._texts.popleft()]
        others: deque[TextsJob] = deque()
        size = jobs[0].size
        while self._texts and size < self._max_batch:
            job = self._texts.popleft()
            if job.key == jobs[0].key and size + job.size <= self._max_batch:
                jobs.append(job)
                size += job.size
            else:
                others.append(job)
        self._texts.extendleft(reversed(others))
        running = [job for job in jobs if not job.cancelled]
        if running:
            self._metrics.batch_size.labels(self.name).observe(sum(job.size for job in running))
            self._call(running)
        self._done(size)

    def _call(self, jobs: list[TextsJob]) -> None:
        try:
            with DEVICE:
                results = list(jobs[0].run([text for job in jobs for text in job.inputs]))
        except InputError as error:
            if len(jobs) == 1:
                jobs[0].fail(error)
                return
            for job in jobs:  # the error is that of one of them
                self._call([job])
            return
        except Exception as error:
            for job in jobs:
                job.fail(error)
            return
        begin = 0
        for job in jobs:
            job.finish(results[begin : begin + job.size])
            begin += job.size

    def _done(self, count: int) -> None:
        with self._changed:
            self._pending -= count
            self._metrics.queued.labels(self.name).set(self._pending)
