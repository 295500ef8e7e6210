"""Train and measure the trials of a sweep in processes of this machine, or as tasks on a Ray cluster.

A trial has a process of its own with its share of the threads, so that one that is killed does not end the others.
Trials that use a class or function of the script or notebook itself, which other processes cannot import, run in this
process. Workers and the sweep exchange small files in the folder of the sweep, which the machines of a cluster share.
"""

import json
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from rich.console import Console

from qkv.config import build
from qkv.errors import QkvError
from qkv.hub.meta_model import meta_model
from qkv.hub.model_folder import ModelFolder
from qkv.metrics import Metric
from qkv.registry import load_plugins, loaded_plugins, names_in_main
from qkv.runtime import portable
from qkv.runtime.cluster import WorkerOptions, place_workers, start_ray
from qkv.runtime.device import pick_device
from qkv.runtime.documents import read_object
from qkv.runtime.files import write_atomically
from qkv.runtime.portable import cpu_count
from qkv.runtime.processes import end_with_parent
from qkv.training import job as training
from qkv.training.display import Display
from qkv.training.recipe import Recipe, read_recipe
from qkv.training.run import Best, Run
from qkv.training.run_manifest import MANIFEST

if TYPE_CHECKING:
    from qkv.experiments.sweep import Trial

TICK = 0.5  # seconds between updates of the display and of the status of a trial
SAVE_SECONDS = 60.0  # that an interrupted trial has to write its checkpoint
RETRIES = 2  # of a Ray task whose machine is lost; it resumes from its newest checkpoint


@dataclass(frozen=True)
class Status:
    """Progress of a trial, as it is shown."""

    done: float = 0.0  # fraction of training
    text: str = ""
    error: str = ""


def read_status(folder: Path, name: str) -> Status:
    """Return the status of a trial; that of one that was never started is empty."""
    path = folder / "output" / f"{name}.json"
    return build(Status, read_object(path), str(path)) if path.exists() else Status()


class TrialDisplay(Display):
    """Prints like `Display`, and writes the status of a trial."""

    def __init__(self, path: Path) -> None:
        super().__init__(Console(force_jupyter=False), samples=0, chart=False)  # stdout is the file of messages
        self._path, self._status, self._written = path, Status(), -math.inf
        self.write(self._status)

    def write(self, status: Status) -> None:
        """Write a status at once."""
        self._status, self._written = status, time.monotonic()
        write_atomically(self._path, json.dumps(asdict(status)).encode())

    def step(self, epoch: int, epochs: int, done: float, loss: float, speed: float, unit: str) -> None:
        super().step(epoch, epochs, done, loss, speed, unit)
        if time.monotonic() - self._written >= TICK:
            self.write(Status(done, f"loss {loss:.3f}{self._metric}{self._best}"))

    def validated(self, metric: Metric, value: float, best: Best | None) -> None:
        super().validated(metric, value, best)
        self.write(replace(self._status, text=f"{self._metric}{self._best}".strip()))


@dataclass(frozen=True)
class TrialJob:
    """A trial as plain data, which is sent to the process or machine that trains it."""

    name: str
    recipe: str
    assignments: tuple[str, ...]
    folder: Path  # of the sweep
    measures: Mapping[str, Callable[[Run, str], Mapping[str, float]]]  # by the key of their results
    force: bool
    plugins: tuple[Path | str, ...]
    directory: Path  # that relative paths start from
    uses_main: bool
    device: str = "cpu"
    threads: int = 1

    @classmethod
    def of(cls, trial: "Trial", folder: Path, measures: Mapping[str, Any], *, force: bool) -> "TrialJob":
        """Return the job of a trial."""
        plugins, recipe, uses_main = tuple(loaded_plugins()), trial.recipe.name, _uses_main(trial.recipe)
        return cls(trial.name, recipe, trial.assignments, folder, measures, force, plugins, Path.cwd(), uses_main)

    def run(self) -> bool:
        """Train from the newest checkpoint, measure the run and write its result; return whether it did not fail."""
        os.environ["OMP_NUM_THREADS"] = str(self.threads)  # of kernels that are loaded later
        torch.set_num_threads(self.threads)
        os.chdir(self.directory)
        display = TrialDisplay(self.folder / "output" / f"{self.name}.json")
        try:
            load_plugins(self.plugins)
            self._train(display)
        except Exception as error:
            traceback.print_exc()
            known = isinstance(error, QkvError)
            display.write(Status(error=str(error) if known else f"{type(error).__name__}: {error}"))
            return False
        return True

    def _train(self, display: TrialDisplay) -> None:
        folder, began = self.folder / "runs" / self.name, time.monotonic()
        if (folder / MANIFEST).exists():
            done = training.resume(folder, self.device, force=self.force, display=display)
        else:
            recipe = read_recipe(self.recipe, self.assignments)
            done = training.begin(recipe, folder, self.device, force=self.force, display=display)
        if not done.state.finished:  # interrupted
            return
        display.write(Status(1.0, "evaluating"))
        saved = ModelFolder(done.run.checkpoints[-1])
        model = meta_model(saved.network, saved.config, saved.path)
        for measure_name, measure in self.measures.items():
            scores = measure(done.run, self.device)
            result = {
                "scores": {name: value for name, value in scores.items() if math.isfinite(value)},
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "minutes": done.state.seconds / 60,
                "seconds": time.monotonic() - began,
            }
            path = self.folder / "results" / f"{self.name}.json"
            results = read_object(path) if path.exists() else {}
            write_atomically(path, json.dumps({**results, measure_name: result}).encode())


def _uses_main(recipe: Recipe) -> bool:
    """Return whether a recipe, or the model that it starts from, may use a class of the script or notebook itself."""
    names = names_in_main()
    if not names or recipe.init is not None:
        return bool(names)
    return not names.isdisjoint(_strings(recipe.to_dict()))


def _strings(value: object) -> Iterator[str]:
    """Yield all strings in nested dicts and lists, other than keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


class Job(Protocol):
    """Work for a process of its own: a dataclass, which is pickled."""

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> Path:
        """Folder for the status and the messages."""

    @property
    def uses_main(self) -> bool:
        """Whether it uses a registered class of the script or notebook itself, which other processes cannot import."""

    @property
    def device(self) -> str: ...

    def run(self) -> bool:
        """Do the work with `threads` threads; write the error to the status and return False if it fails.

        The `done` of the status becomes 1, unless it fails or is interrupted.
        """


class TrialWatcher(Protocol):
    """Shows the progress of the jobs."""

    def update(self, running: Sequence[str]) -> None:
        """Show the jobs that are running; called about once a second."""

    def finished(self, name: str) -> None:
        """Show that a job has ended."""

    def print(self, text: str) -> None:
        """Show a message."""


def run_jobs(jobs: Sequence[Job], workers: WorkerOptions, device: str, watcher: TrialWatcher) -> None:
    """Run all jobs; an interrupt saves the running ones and is raised again."""
    for job in jobs:
        write_atomically(job.folder / "output" / f"{job.name}.json", json.dumps(asdict(Status())).encode())
    if not jobs:
        return
    run = _run_on_ray if workers.ray else _run_on_this_machine
    for job, problem in run(jobs, workers, device, watcher):
        if problem and not read_status(job.folder, job.name).error:
            error = json.dumps(asdict(Status(error=problem)))
            write_atomically(job.folder / "output" / f"{job.name}.json", error.encode())
        watcher.finished(job.name)


def _run_on_this_machine(
    jobs: Sequence[Job], workers: WorkerOptions, device: str, watcher: TrialWatcher
) -> Iterator[tuple[Job, str]]:
    """Yield each job when it has ended, and what went wrong: in processes, then those that must run in this one."""
    sent, kept = list[Job](), list[Job]()
    for job in jobs:
        (sent if not job.uses_main and _can_be_sent(job) else kept).append(job)
    if kept:
        watcher.print(
            f"note: {len(kept)} of {len(jobs)} run(s) use a class or function of the script or notebook itself, which "
            "other processes cannot import; they run in this process, one at a time. Move it to a module to use workers"
        )
    if sent:
        yield from _run_in_processes(sent, workers, device, watcher)
    if kept:
        yield from _run_here(kept, workers, device, watcher)


def _can_be_sent(job: Job) -> bool:
    """Return whether a job can be pickled for a process that does not import the script."""
    with _hidden_main():
        try:
            pickle.dumps(job)
        except (pickle.PicklingError, AttributeError, TypeError):
            return False
    return True


def _run_here(
    jobs: Sequence[Job], workers: WorkerOptions, device: str, watcher: TrialWatcher
) -> Iterator[tuple[Job, str]]:
    """Yield each job when it has ended in this process, one at a time."""
    threads = torch.get_num_threads()
    for waiting in jobs:
        job: Any = replace(waiting, device=_devices(device)[0], threads=threads)  # type: ignore[type-var]
        watcher.update([job.name])
        with (job.folder / "output" / f"{job.name}.txt").open("a") as output, redirect_stdout(output):
            succeeded = job.run()
        if succeeded and read_status(job.folder, job.name).done < 1:
            raise KeyboardInterrupt
        yield job, "" if succeeded else "it failed"


def _run_in_processes(
    jobs: Sequence[Job], workers: WorkerOptions, device: str, watcher: TrialWatcher
) -> Iterator[tuple[Job, str]]:
    """Yield each job when its process has ended, and what went wrong."""
    devices = _devices(device)
    count = workers.count or min(len(jobs), cpu_count() if devices == ["cpu"] else len(devices))
    threads = max(1, cpu_count() // count)
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the threads of torch
    waiting, free = deque(jobs), deque(devices[number % len(devices)] for number in range(count))
    running: dict[int, tuple[Any, Job]] = {}
    try:
        while waiting or running:
            while waiting and free:
                job: Any = replace(waiting.popleft(), device=free.popleft(), threads=threads)  # type: ignore[type-var]
                process = context.Process(target=_run_in_process, args=(job,))
                with _hidden_main():
                    process.start()
                running[process.sentinel] = process, job
            watcher.update([job.name for _, job in running.values()])
            for sentinel in wait(list(running), TICK):
                process, job = running.pop(sentinel)  # type: ignore[arg-type]
                process.join()
                free.append(job.device)
                yield job, _problem(process.exitcode)
    finally:
        for process, _ in running.values():
            process.terminate()  # SIGTERM: training saves a checkpoint
        for process, _ in running.values():
            process.join(SAVE_SECONDS)
            process.kill()


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Start processes that do not import the script, which would call this again unless it checks `__name__`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _run_in_process(job: Job) -> None:
    """Run a job in its own process, which ends with its parent and leaves Ctrl-C to it."""
    getattr(os, "setsid", lambda: None)()  # Ctrl-C is sent to all processes of a session's foreground group
    threading.Thread(target=end_with_parent, daemon=True).start()
    output = os.open(job.folder / "output" / f"{job.name}.txt", portable.APPEND | portable.NO_FOLLOW)
    for stream in (1, 2):
        os.dup2(output, stream)
    if not job.run():
        os._exit(1)


def _problem(code: int | None) -> str:
    """Describe the exit code of a process; "" if it is 0."""
    if code == -getattr(signal, "SIGKILL", 9):
        return "its process was killed, perhaps for lack of memory"
    return f"its process ended with exit code {code}" if code else ""


def _devices(device: str) -> list[str]:
    """Return the devices that the trials are distributed over: the CPU, a GPU, or all GPUs."""
    picked = pick_device(device)
    if picked.type == "cpu" or picked.index is not None:
        return [str(picked)]
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]


def _run_on_ray(
    jobs: Sequence[Job], workers: WorkerOptions, device: str, watcher: TrialWatcher
) -> Iterator[tuple[Job, str]]:
    """Yield each job when its task has ended, and what went wrong."""
    ray = start_ray(workers)
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        on_gpus = device != "cpu" and any(node.get("GPU", 0) for node in nodes)
        cpus = sum(int(node.get("CPU", 0)) for node in nodes)
        placement = place_workers(nodes, workers.count or (None if on_gpus else min(len(jobs), cpus)), device)
        task = ray.remote(
            num_cpus=placement.threads, num_gpus=placement.gpus, max_calls=1, max_retries=RETRIES
        )(_run_as_task)  # fmt: skip
        target = "cuda" if placement.gpus else "cpu"
        placed: list[Any] = [replace(job, device=target, threads=placement.threads) for job in jobs]  # type: ignore[type-var]
        tasks = {task.remote(job): job for job in placed}
        try:
            while tasks:
                watcher.update([job.name for job in tasks.values() if _has_begun(job)])
                for ended in ray.wait(list(tasks), timeout=TICK)[0]:
                    yield tasks.pop(ended), _task_problem(ray, ended)
        finally:
            for unfinished in tasks:
                ray.cancel(unfinished)  # SIGINT: training saves a checkpoint
            if tasks:
                ray.wait(list(tasks), num_returns=len(tasks), timeout=SAVE_SECONDS)
    finally:
        ray.shutdown()


def _run_as_task(job: Job) -> None:
    """Run a job in a Ray worker, with its messages in a file."""
    with (job.folder / "output" / f"{job.name}.txt").open("a") as output, redirect_stdout(output):
        job.run()


def _task_problem(ray: Any, ended: Any) -> str:
    try:
        ray.get(ended)
    except ray.exceptions.RayError as error:
        return f"its Ray task failed: {next(iter(str(error).strip().splitlines()), type(error).__name__)}"
    return ""


def _has_begun(job: Job) -> bool:
    return bool(read_status(job.folder, job.name).text)
