"""Decode the chunks of a bulk job in this process, in several processes, or on a Ray cluster.

Workers load the model by its path and read the lines of a chunk from the input file; results are returned in the order
of the chunks.
"""

import io
import json
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from qkv.cli.console import collect_results, info
from qkv.datasets.formats.text_files import Span
from qkv.errors import InputError, QkvError
from qkv.registry import load_plugins, loaded_plugins
from qkv.runtime.cluster import Placement, WorkerOptions, place_workers, start_ray
from qkv.runtime.portable import cpu_count
from qkv.runtime.processes import ProcessPool

if TYPE_CHECKING:
    from qkv.generation import DType, GenerationConfig

Report = Callable[[int, int], None]  # called with the number of finished lines and of their tokens
MAX_ATTEMPTS = 5  # at a chunk whose worker dies: Ray would repeat one that always ends its worker forever
MAX_BLOCKS = 10_000  # of a Ray dataset; a longer job has several chunks per block
CONTINUE = "continue with --resume"


class LineDecoder(Protocol):
    """A loaded model."""

    @property
    def description(self) -> str:
        """The implementation that decodes."""

    def check(self, texts: list[str], begin: int) -> None:
        """Raise if a text cannot be decoded; the first one has the index `begin`."""

    def decode(self, texts: list[str], begin: int, report: Report) -> Mapping[int, Sequence[str]]:
        """Print the results of texts, and return out-of-vocabulary tokens by input number."""


@dataclass(frozen=True)
class DecodeJob(ABC):
    """A model and its options: plain data that is sent to workers, which load the model themselves."""

    label: ClassVar[str]
    run: Path
    device: str
    dtype: "DType"
    config: "GenerationConfig"
    batch_size: int | None
    json: bool
    chunk: int  # number of lines that are decoded together

    @abstractmethod
    def load(self) -> LineDecoder:
        """Load the model."""

    def settings(self) -> dict[str, Any]:
        """Return the options that the results depend on."""
        return {**self.config.to_dict(), "dtype": self.dtype, "device": self.device, "json": self.json}

    def on(self, device: str) -> Self:
        """Return the job of a worker: on this device, with absolute paths."""
        return replace(self, device=device, run=model_of_workers(self.run))


@dataclass(frozen=True)
class Result:
    """The results of a chunk as bytes of the output file, or an error."""

    data: bytes = b""
    unknown: Mapping[int, Sequence[str]] = field(default_factory=dict)  # out-of-vocabulary tokens by input number
    tokens: int = 0
    error: str = ""
    internal: bool = False  # whether the error is not one of the input
    worker: str = ""
    decoding: str = ""


class SpanDecoder:
    """Checks and decodes the lines of spans; with `named`, errors name the file."""

    def __init__(self, job: DecodeJob, *, named: bool) -> None:
        self._decoder, self._named = job.load(), named

    @property
    def description(self) -> str:
        return self._decoder.description

    def check(self, span: Span) -> None:
        """Raise if a line cannot be decoded."""
        texts = span.read()
        with self._naming(span):
            self._decoder.check(texts, span.first)

    def decode(self, span: Span, report: Report) -> Result:
        """Decode the lines."""
        texts, tokens = span.read(), 0

        def count(new_lines: int, new_tokens: int) -> None:
            nonlocal tokens
            tokens += new_tokens
            report(new_lines, new_tokens)

        with collect_results() as lines, self._naming(span):
            unknown = self._decoder.decode(texts, span.first, count)
        return Result("".join(f"{line}\n" for line in lines).encode(), unknown, tokens)

    @contextmanager
    def _naming(self, span: Span) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            if not self._named:
                raise
            raise InputError(f"{Path(span.path).name}: {error}") from None


class Worker:
    """Checks and decodes in a process of its own. Errors in the input are returned, since not all can be pickled."""

    def __init__(self, job: DecodeJob, threads: int, plugins: Sequence[Path | str], *, named: bool) -> None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # of the kernels, which are loaded later
        import torch

        torch.set_num_threads(threads)
        self._name, self._error = f"{socket.gethostname()}, process {os.getpid()}", ""
        try:
            load_plugins(plugins)
            self._decoder = SpanDecoder(job, named=named)
        except QkvError as error:
            self._error = str(error)

    def run(self, span: Span, *, decode: bool) -> Result:
        """Decode the lines of a span, or only check them."""
        from qkv.runtime.memory import is_out_of_memory

        if self._error:
            return Result(error=self._error)
        try:
            if not decode:
                self._decoder.check(span)
                return Result()
            result = self._decoder.decode(span, lambda lines, tokens: None)
        except QkvError as error:
            return Result(error=str(error))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return Result(error="a worker is out of memory: reduce --batch-size, --num-beams or --workers")
        return replace(result, worker=self._name, decoding=self._decoder.description)


class Workers(Protocol):
    """Checks and decodes the spans of a job, which are known to it; both yield one result per span, in order."""

    def check(self) -> Iterator[Result]: ...

    def decode(self, report: Report) -> Iterator[Result]: ...


class InProcess:
    """Decodes in this process."""

    def __init__(self, decoder: SpanDecoder, spans: "Spans") -> None:
        self._decoder, self._spans = decoder, spans

    def check(self) -> Iterator[Result]:
        for span in self._spans.checks():
            self._decoder.check(span)
            yield Result()

    def decode(self, report: Report) -> Iterator[Result]:
        for span in self._spans.chunks():
            yield self._decoder.decode(span, report)


_worker: Worker  # of a worker process


def _start_process(job: DecodeJob, threads: int, plugins: Sequence[Path | str], named: bool) -> None:
    """Load the model in a worker process."""
    global _worker
    _worker = Worker(job, threads, plugins, named=named)


def _run_in_process(span: Span, decode: bool) -> Result:
    return _worker.run(span, decode=decode)


class Processes:
    """Decodes in several processes of this machine, each with its share of the threads."""

    def __init__(self, job: DecodeJob, spans: "Spans", count: int) -> None:
        arguments = (job.on("cpu"), max(1, cpu_count() // count), loaded_plugins(), spans.named)
        self._spans, self._count = spans, count
        self._pool = ProcessPool(count, _start_process, arguments)

    def check(self) -> Iterator[Result]:
        return self._run(self._spans.checks(), decode=False)

    def decode(self, report: Report) -> Iterator[Result]:
        for span, result in zip(self._spans.chunks(), self._run(self._spans.chunks(), decode=True), strict=True):
            report(span.count, result.tokens)
            yield result

    def _run(self, spans: Iterable[Span], *, decode: bool) -> Iterator[Result]:
        """Yield the results in order; a few spans are waiting for each process."""
        futures: deque[Future[Result]] = deque()
        try:
            for span in spans:
                futures.append(self._pool.submit(_run_in_process, span, decode))
                if len(futures) > 2 * self._count:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        except BrokenProcessPool:
            raise QkvError(f"a worker process was killed, perhaps for lack of memory: {CONTINUE}") from None

    def close(self) -> None:
        """End the processes, which may be in the middle of a chunk."""
        self._pool.terminate()


class RayWorker(Worker):
    """A worker that Ray Data calls with a table of one row."""

    def __init__(self, attempts: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._attempts = attempts

    def __call__(self, table: Any) -> Any:
        import pyarrow
        import ray

        (row,) = table.to_pylist()
        decode, span = row.pop("decode"), Span(**row)
        if ray.get(self._attempts.begin.remote((span.path, span.first, decode))) > MAX_ATTEMPTS:
            lines = f"lines {span.first + 1} to {span.first + span.count}"
            error = f"{span.path}: {lines} have ended {MAX_ATTEMPTS} workers, perhaps for lack of memory"
            result = Result(error=error, internal=True)
        else:
            result = self._run(span, decode)
        unknown = json.dumps(dict(result.unknown))  # the type of an empty column would not be known
        return pyarrow.table({name: [value] for name, value in (asdict(result) | {"unknown": unknown}).items()})

    def _run(self, span: Span, decode: bool) -> Result:
        try:
            return self.run(span, decode=decode)
        except Exception as error:  # Ray would drop its message
            return Result(error=f"a worker failed: {type(error).__name__}: {error}", internal=True)


class Attempts:
    """Counts how often each span was begun."""

    def __init__(self) -> None:
        self._counts = Counter[Any]()

    def begin(self, span: Any) -> int:
        """Return the number of this attempt."""
        self._counts[span] += 1
        return self._counts[span]


class RayCluster:
    """Decodes on a Ray cluster with an actor pool of Ray Data.

    The rows of the dataset are spans: first those to check, then those to decode. If a worker or its machine dies, Ray
    starts it again and repeats its spans; the results arrive in the order of the rows.
    """

    def __init__(self, job: DecodeJob, spans: "Spans", options: WorkerOptions) -> None:
        self._spans = spans
        self._rows: Generator[Result, None, None] | None = None
        self._ray = start_ray(options)
        try:
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            self._rows = self._results(job, place_workers(nodes, options.count, job.device))
        except BaseException:
            self.close()
            raise

    def check(self) -> Iterator[Result]:
        for _ in self._spans.checks():
            yield self._next()

    def decode(self, report: Report) -> Iterator[Result]:
        for span in self._spans.chunks():
            result = self._next()
            report(span.count, result.tokens)
            yield result

    def _next(self) -> Result:
        assert self._rows is not None
        return next(self._rows)

    def _results(self, job: DecodeJob, placement: Placement) -> Generator[Result, None, None]:
        """Yield the result of each row."""
        data = self._ray.data
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        context.target_max_block_size = 1  # a result is returned as soon as it is complete
        rows = [asdict(span) | {"decode": False} for span in self._spans.checks()]
        rows += [asdict(span) | {"decode": True} for span in self._spans.chunks()]
        device = "cuda" if placement.gpus else "cpu"
        attempts = self._ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Attempts).remote()
        dataset = data.from_items(rows, override_num_blocks=min(len(rows), MAX_BLOCKS)).map_batches(
            RayWorker,
            fn_constructor_args=(attempts, job.on(device), placement.threads, loaded_plugins()),
            fn_constructor_kwargs={"named": self._spans.named},
            batch_size=1,
            batch_format="pyarrow",
            compute=data.ActorPoolStrategy(size=placement.workers, max_tasks_in_flight_per_actor=2),
            num_cpus=placement.threads,
            num_gpus=placement.gpus or None,
        )
        try:
            for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for row in table.to_pylist():
                    unknown = {int(number): tokens for number, tokens in json.loads(row.pop("unknown")).items()}
                    yield Result(unknown=unknown, **row)
        except self._ray.exceptions.RayError as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise QkvError(f"a Ray worker failed ({reason}): {CONTINUE}") from error

    def close(self) -> None:
        """End the dataset and disconnect from the cluster; one that was started here ends."""
        if self._rows is not None:
            self._rows.close()
        self._ray.shutdown()


class Spans(Protocol):
    """The lines of a job that remain to be decoded."""

    @property
    def named(self) -> bool:
        """Whether errors must name the file."""

    def checks(self) -> Iterator[Span]: ...

    def chunks(self) -> Iterator[Span]: ...


def model_of_workers(model: str | Path) -> Path:
    """Return the absolute path of a model; a training run has one checkpoint for all workers. Hub names stay names."""
    from qkv.hub.huggingface import is_hub_name
    from qkv.hub.model_folder import locate

    return Path(model) if is_hub_name(str(model)) else locate(model).absolute()


@contextmanager
def open_workers(job: DecodeJob, spans: Spans, options: WorkerOptions, *, verbose: bool) -> Iterator[Workers]:
    """Start the workers of a job."""
    if not options.ray and (options.count or 1) == 1:
        decoder = SpanDecoder(job, named=spans.named)
        if verbose:
            info(f"decoding: {decoder.description}")
        yield InProcess(decoder, spans)
        return
    if not options.ray:
        check_cpu(job.device)
    with redirect_stdout(sys.stderr):  # Ray prints messages, such as that a worker died, to stdout
        workers = RayCluster(job, spans, options) if options.ray else Processes(job, spans, options.count or 1)
        try:
            yield workers
        finally:
            with redirect_stdout(io.StringIO()):
                workers.close()


def check_cpu(device: str) -> None:
    """Raise if the model would be decoded on a GPU, which several processes would share."""
    from qkv.runtime.device import pick_device

    if pick_device(device).type != "cpu":
        raise InputError("--workers without --ray runs on CPUs: pass --device cpu, or --ray for one worker per GPU")
