"""Decode the chunks of a bulk job in this process, in several processes, or on a Ray cluster.

Workers load the model by its path and read the lines of a chunk from the input file; results are returned in the order
of the chunks.
"""

import io
import json
import logging
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from qkv.cli.console import collect_results, info
from qkv.datasets.text_files import Span
from qkv.errors import InputError, QkvError
from qkv.registry import load_plugin, loaded_plugins
from qkv.runtime.native import silence_native_stderr

if TYPE_CHECKING:
    from qkv.generation import DType, GenerationConfig

Report = Callable[[int, int], None]  # called with the number of finished lines and of their tokens
INSTALL_RAY = "--ray requires ray, which is not installed: pip install 'qkv[ray]'"
MAX_ATTEMPTS = 5  # at a chunk whose worker dies: Ray would repeat one that always ends its worker forever
MAX_BLOCKS = 10_000  # of a Ray dataset; a longer job has several chunks per block
MAX_WORKERS_PER_CPU = 4
CONNECT_SECONDS = 10.0
CONTINUE = "continue with --resume"


@dataclass(frozen=True)
class WorkerOptions:
    """Where to decode: the options --workers, --ray and --ray-address."""

    count: int | None = None
    ray: bool = False
    address: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and not self.ray:
            raise InputError("--ray-address requires --ray")
        if self.address is not None and self.address.startswith("ray://"):
            raise InputError("--ray-address: Ray Client (ray://) is not supported: run qkv on a machine of the cluster")
        if self.count is not None and self.count < 1:
            raise InputError(f"--workers {self.count}: must be at least 1")
        if self.address is None and self.count is not None and self.count > MAX_WORKERS_PER_CPU * cpu_count():
            raise InputError(f"--workers {self.count} is too many for the {cpu_count()} CPU(s) of this machine")
        if self.ray and find_spec("ray") is None:
            raise InputError(INSTALL_RAY)

    @property
    def given(self) -> str:
        """The option that requires files, if there is one."""
        return "--ray" if self.ray else "--workers" if self.count is not None else ""


class Decoder(Protocol):
    """A loaded model."""

    @property
    def description(self) -> str:
        """The implementation that decodes."""

    def check(self, texts: list[str], begin: int) -> None:
        """Raise if a text cannot be decoded; the first one has the index `begin`."""

    def decode(self, texts: list[str], begin: int, report: Report) -> Mapping[int, Sequence[str]]:
        """Print the results of texts, and return out-of-vocabulary tokens by input number."""


@dataclass(frozen=True)
class Job(ABC):
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
    def load(self) -> Decoder:
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

    def __init__(self, job: Job, *, named: bool) -> None:
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

    def __init__(self, job: Job, threads: int, plugins: Sequence[Path], *, named: bool) -> None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # of the kernels, which are loaded later
        import torch

        torch.set_num_threads(threads)
        self._name, self._error = f"{socket.gethostname()}, process {os.getpid()}", ""
        try:
            for plugin in plugins:
                load_plugin(plugin)
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


def _start_process(job: Job, threads: int, plugins: Sequence[Path], named: bool) -> None:
    """Load the model in a worker process, which ends with its parent and leaves Ctrl-C to it."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = Worker(job, threads, plugins, named=named)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_in_process(span: Span, decode: bool) -> Result:
    return _worker.run(span, decode=decode)


class Processes:
    """Decodes in several processes of this machine, each with its share of the threads."""

    def __init__(self, job: Job, spans: "Spans", count: int) -> None:
        arguments = (job.on("cpu"), max(1, cpu_count() // count), loaded_plugins(), spans.named)
        context = multiprocessing.get_context("spawn")  # a forked process cannot use the threads of torch
        self._spans, self._count = spans, count
        self._others = {*multiprocessing.active_children()}
        self._pool = ProcessPoolExecutor(count, context, _start_process, arguments)

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
        for process in {*multiprocessing.active_children()} - self._others:
            process.terminate()
        self._pool.shutdown(cancel_futures=True)


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

    def __init__(self, job: Job, spans: "Spans", options: WorkerOptions) -> None:
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

    def _results(self, job: Job, placement: "Placement") -> Generator[Result, None, None]:
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


def check_address(address: str) -> None:
    """Raise unless a server answers at HOST:PORT, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not (host and port.isdecimal() and int(port) < 2**16):
        raise InputError(f"--ray-address {address}: expected HOST:PORT or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise InputError(f"--ray-address {address}: no Ray cluster answers: {error.strerror or error}") from None


def start_ray(options: WorkerOptions) -> Any:
    """Connect to a cluster, or start one on this machine, without dashboard and usage statistics; return the module."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}  # threads must not start it again
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of messages on stderr
    settings: dict[str, Any] = {"address": options.address, "log_to_driver": False, "logging_level": "error"}
    if options.address is not None:
        check_address(options.address)
    else:
        if "RAY_AUTH_MODE" not in os.environ:  # other users cannot connect to the cluster
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        cpus = max(cpu_count(), options.count or 1)
        settings |= {"address": "local", "include_dashboard": False, "num_cpus": cpus}
    try:
        import ray  # reads the environment
        import ray.data
    except ImportError:
        raise InputError(INSTALL_RAY) from None
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    try:
        with silence_native_stderr():  # Ray prints its own log level
            ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = "this machine" if options.address is None else options.address
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"--ray: cannot use the cluster of {where}: {reason}") from error
    return ray


@dataclass(frozen=True)
class Placement:
    """Number of workers, and the CPUs and GPUs of each."""

    workers: int
    threads: int
    gpus: int = 0


def place_workers(nodes: Sequence[Mapping[str, float]], count: int | None, device: str) -> Placement:
    """Return the placement of `count` workers on machines with these resources.

    By default there is one worker per GPU or, without GPUs, one per machine with all of its CPUs.
    """
    if device.startswith("cuda:"):
        raise InputError(f"--device {device}: Ray assigns a GPU to each worker: pass --device cuda")
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if device == "cuda" and not gpus:
        raise InputError("--device cuda: the Ray cluster has no GPUs")
    if device != "cpu" and gpus:
        if count is not None and count > gpus:
            raise InputError(f"--workers {count}: the Ray cluster has {gpus} GPU(s)")
        return Placement(count or gpus, 1, 1)
    cpus = [int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1]
    count = count or len(cpus)
    if not count or count > sum(cpus):
        raise InputError(f"--workers {count}: the Ray cluster has {sum(cpus)} CPU(s)")
    threads = next(n for n in range(max(cpus), 0, -1) if sum(cpu // n for cpu in cpus) >= count)
    return Placement(count, threads)


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


def cpu_count() -> int:
    """Return the number of CPUs that this process can use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def open_workers(job: Job, spans: Spans, options: WorkerOptions, *, verbose: bool) -> Iterator[Workers]:
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
