"""The training loop."""

import copy
import math
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.profiler import record_function

from qkv.config import build
from qkv.errors import InputError, NotFinite
from qkv.hub import Network
from qkv.hub.model_folder import checkpoint_path
from qkv.hub.tensors import WEIGHTS, read_tensors
from qkv.nn.interfaces import ProgressDependent
from qkv.runtime import provenance
from qkv.runtime.device import random_state, restore_random_state
from qkv.runtime.files import remove_folder
from qkv.tasks.base.task import Task
from qkv.tasks.base.train_config import TrainConfig
from qkv.training.checkpoint import TRAINING, Checkpoint, CheckpointWriter, read_sharded
from qkv.training.display import Display
from qkv.training.distributed import (
    SplitTrainStep,
    any_process,
    gather,
    gather_weights,
    is_main,
    like,
    local,
    on_main,
    parallelize,
    rank,
    shard,
    split,
    training_buffers,
    world_size,
)
from qkv.training.ema import EMA
from qkv.training.environment import RunEnvironment, current_environment, step_operations
from qkv.training.log import DEFAULT_LOGGERS, Log, LoggedRun, NoLog
from qkv.training.optimizer import build_optimizer, learning_rate
from qkv.training.profile import RANGES, StepProfile
from qkv.training.run import Best, Run, TrainState
from qkv.training.run_manifest import MANIFEST
from qkv.training.step import CudaGraphTrainStep, TrainStep, prepare_blocks
from qkv.training.update import GuardedUpdate, PendingReport
from qkv.types import Tensor

LOG_EVERY = 20  # steps
MAX_PENDING = 1  # steps on a GPU whose result the host does not wait for
MAX_SKIPPED = 10  # updates in a row, before training stops
SEEDS = 2**31  # number of seeds of a recipe; those of the other processes follow


def train(
    run: Run,
    task: Task,
    model: Network,
    data: str,
    display: Display,
    loggers: Sequence[str] = DEFAULT_LOGGERS,
    *,
    strict: bool = False,
    profile: bool = False,
) -> TrainState:
    """Train to the end of the recipe, from the newest checkpoint if there is one; Ctrl-C saves and returns early.

    With `strict`, a checkpoint of another environment is an error. With `profile`, a few steps are profiled.
    """
    with CheckpointWriter() as writer:
        trainer = Trainer(run, task, model, data, display, writer, strict=strict)
        logged = LoggedRun(run.folder, trainer.state.step + 1, run.recipe.to_dict())
        log = Log(logged, loggers, display.print) if is_main() else NoLog()
        if profile and is_main():
            trainer.profile_steps()
        with Interrupt() as interrupt, log, display:
            return trainer.train(log, interrupt)


class Interrupt:
    """True once SIGINT or SIGTERM was received, to stop after the step; a second signal raises KeyboardInterrupt.

    With several processes further signals are ignored: torchrun repeats the one it receives.
    """

    def __init__(self) -> None:
        self._requested = False

    def __bool__(self) -> bool:
        return self._requested

    def __enter__(self) -> "Interrupt":
        self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._requested and world_size() == 1:
            raise KeyboardInterrupt
        self._requested = True


class Trainer:
    """The model, the optimizer and the state of a run, restored from its newest checkpoint."""

    def __init__(
        self,
        run: Run,
        task: Task,
        model: Network,
        data: str,
        display: Display,
        writer: CheckpointWriter,
        *,
        strict: bool = False,
    ) -> None:
        self.run, self.task, self.model, self.data, self.display = run, task, model, data, display
        self.writer = writer
        self.config = config = run.recipe.train
        self.environment = current_environment(model, task, config)
        sharded = self.environment.parallel == "fsdp"
        average = copy.deepcopy(model) if config.ema else None
        replica = copy.deepcopy(model) if sharded and is_main() else None
        self.train_step = build_train_step(task, model, config, self.environment)
        if average is not None and sharded:
            shard(average)
        self.progress_dependent = [each for each in (task, *model.modules()) if isinstance(each, ProgressDependent)]
        self.optimizer = build_optimizer(model, config)
        self.guarded_update = GuardedUpdate(self.optimizer, config, model.device)
        self.pending: deque[PendingReport] = deque()
        self.skipped = 0  # updates in a row
        self.profile: StepProfile | None = None
        self.ema = EMA(model, config.ema, average) if average is not None else None
        self.source = model if average is None else average  # of the weights that are validated and saved
        self.averaged: Any = replica if sharded else self.source
        if rank():  # dropout of each process
            torch.manual_seed(run.recipe.seed + rank() * SEEDS)
        self.state = self.restore(strict=strict)
        if is_main():
            run.truncate_log(self.state)
        self.saved = self.state if run.checkpoints else None

    def profile_steps(self) -> None:
        """Profile a few of the next steps."""
        # Counting runs the model in one process, which sharded weights do not allow.
        operations = partial(step_operations, self.model, self.task, self.config) if world_size() == 1 else None
        self.profile = StepProfile(
            self.run.folder, self.model.device, self.environment.precision, operations, self.display.print
        )

    def train(self, log: Log, interrupt: Interrupt) -> TrainState:
        """Run the remaining steps; after an interrupt, save and return."""
        config = self.config
        began, clock, tokens = time.monotonic() - self.state.seconds, time.monotonic(), 0
        steps = remaining_steps(self.task, config.epochs, self.state)
        batches = Prefetcher(self.task, steps, self.model.device, config.accumulate, filled=self.environment.graphs)
        for step, batch in batches:
            rate = learning_rate(config, self.state.step, step.start)
            for each in self.progress_dependent:
                each.set_progress(step.start)
            self.update(batch, batches, rate)
            tokens += batch.tokens
            now = time.monotonic()
            self.advance(step, now - began)
            if self.profile is not None:
                self.profile.step(batch.tokens)
            if self.state.step % LOG_EVERY == 0 or self.state.step == 1 or step.end == 1.0:
                self.check_reports()
                _, loss, norm, _ = self.report
                now = time.monotonic()
                speed, clock, tokens = tokens / (now - clock), now, 0
                log.write(self.state.step, "train", {"loss": loss, "norm": norm, "lr": rate, "tokens_per_s": speed})
                self.display.step(step.epoch + 1, config.epochs, step.end, loss, speed, self.task.unit)
            if self.state.step % config.validate_every == 0:
                self.validate(log)
                if self.state.best is not None and self.state.best.step == self.state.step:
                    self.save()
                if config.patience and self.state.evals_since_best >= config.patience:
                    failed = self.state.evals_since_best
                    self.display.print(f"early stopping: {config.best_by} has not improved in {failed} validations")
                    break
                clock, tokens = time.monotonic(), 0  # the reported speed is that of training
            self.writer.check()
            stopping = any_process(bool(interrupt))  # read once: a signal after it must not stop without saving
            if self.state.step % config.save_every == 0 or stopping:
                self.save()
            if stopping:
                self.writer.wait()
                return self.state
        if self.profile is not None:
            self.profile.close()
        if not self.state.finished:
            if self.state.validated < self.state.step:
                self.validate(log)
            self.state = replace(self.state, finished=True, seconds=time.monotonic() - began)
            self.save()
        self.writer.wait()
        return self.state

    def update(self, batch: Any, batches: "Prefetcher", rate: float) -> None:
        """Update the weights; the result is checked while the next step runs."""
        self.model.train()
        with record_function(RANGES[0]):
            output = self.train_step(batch)
        with record_function(RANGES[1]):
            self.pending.append(self.guarded_update(self.state.step + 1, output, rate))
        with record_function(RANGES[2]):
            batches.prefetch()  # overlap host work with the GPU
        self.check_reports(MAX_PENDING if self.model.device.type == "cuda" else 0)

    def check_reports(self, pending: int = 0) -> None:
        """Wait for the reports of all but the last `pending` steps; skipped updates are printed, or stop training."""
        while len(self.pending) > pending:
            self.report = report = self.pending.popleft().read()
            self.skipped = self.skipped + 1 if report.skipped else 0
            if not report.skipped:
                continue
            finite = math.isfinite(report.loss) and math.isfinite(report.norm)
            name, value = ("loss", report.loss) if not math.isfinite(report.loss) else ("gradient", report.norm)
            if (not finite and self.config.on_nonfinite == "stop") or self.skipped >= MAX_SKIPPED:
                reason = "is not finite" if not finite else f"was too large in {MAX_SKIPPED} steps in a row"
                raise NotFinite(
                    f"step {report.step}: the {name} {reason} ({value}); stopped before the update; "
                    f"{self.last_checkpoint()}; try a lower train.lr, a longer train.warmup or precision float32"
                )
            self.display.print(f"step {report.step}: skipped the update: {name} {value:.3g}")

    def advance(self, step: "Step", seconds: float) -> None:
        """Count a step, and average the weights."""
        count, batch = self.state.step + 1, step.number + 1
        self.state = replace(self.state, step=count, epoch=step.epoch, batch=batch, seconds=seconds)
        if self.ema is not None:
            self.ema.update(self.state.step)

    def validate(self, log: Log) -> None:
        """Evaluate the averaged weights on the validation data, and count the validations since the best one."""
        self.check_reports()
        self.display.validating()
        if self.environment.parallel == "fsdp":
            gather_weights(self.source, self.averaged)
        with torch.compiler.set_stance("force_eager"):  # in other shapes, and too short to compile for
            scores = on_main(lambda: self.task.validate(self.averaged.eval()))
        metric, value = self.task.metrics[self.config.best_by], scores[self.config.best_by]
        state = replace(self.state, validated=self.state.step, evals_since_best=self.state.evals_since_best + 1)
        if math.isfinite(value) and (state.best is None or metric.at_least_as_good(value, state.best.value)):
            state = replace(state, best=Best(state.step, value), evals_since_best=0)
        log.write(state.step, "valid", scores)
        self.display.validated(metric, value, state.best)
        if is_main() and (samples := self.display.draw_samples(self.task, self.averaged)):
            log.write_samples(state.step, samples)
        self.state = state

    def save(self) -> None:
        """Write a checkpoint, unless that of this state exists; the oldest beyond `train.keep` are removed."""
        run, state, model = self.run, self.state, self.model
        if self.saved == state:
            return
        self.check_reports()
        if not all(local(parameter).isfinite().all() for parameter in model.parameters()):
            raise NotFinite(f"step {state.step}: a weight is not finite; {self.last_checkpoint()}")
        if self.environment.parallel == "fsdp":
            gather_weights(self.source, self.averaged)
        training, sharded = self.training_tensors()
        checkpoint = Checkpoint(
            checkpoint_path(run.folder, state.step), model, self.task.tokenizer,
            dict(self.averaged.named_parameters()) if is_main() else {}, training, sharded,
            {"state": asdict(state), "data": self.data, **asdict(self.environment)},
        )  # fmt: skip
        self.writer.submit(checkpoint, then=partial(finish_checkpoint, run, state))
        self.saved = state

    def last_checkpoint(self) -> str:
        """Return what an error message states about the last checkpoint, which may still be being written."""
        self.writer.wait()
        paths = self.run.checkpoints
        return f"the last checkpoint is {paths[-1]}" if paths else "no checkpoint has been written yet"

    def training_tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return what is saved next to the model: small tensors, on the first process, and those of each weight."""
        model = self.model
        gathered = gather((random_state(model.device), self.task.carried_state()))
        small = {f"guard.{name}": value for name, value in self.guarded_update.state().items()}
        small |= {f"buffer.{name}": value for name, value in training_buffers(model).items()}
        for number, (random, _) in enumerate(gathered):
            small |= {f"{random_prefix(number)}{name}": value for name, value in random.items()}
        for name in gathered[0][1] if gathered else ():
            parts = [carried[name] for _, carried in gathered]
            small[f"carried.{name}"] = parts[0] if len(parts) == 1 else torch.cat(parts)
        sharded: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            for key, value in self.optimizer.state_of(parameter).items():
                (sharded if value.shape == parameter.shape else small)[f"optimizer.{name}.{key}"] = value.detach()
            if self.ema is not None:
                sharded[f"weight.{name}"] = parameter.detach()
        return small, sharded

    def restore(self, *, strict: bool = False) -> TrainState:
        """Restore model, optimizer, EMA and random state from the newest checkpoint, and return its state."""
        run, model, environment = self.run, self.model, self.environment
        path = on_main(lambda: run.checkpoints[-1] if run.checkpoints else None)
        if path is None:
            return TrainState(devices=(environment.device,))
        record = on_main(lambda: run.verify(path))
        if record["data"] != self.data:
            raise InputError(f"{run.folder}: the data have changed since this run was started; start a new run")
        differences = environment.differences(record)
        if strict and differences:
            raise InputError(f"--strict-resume: {path}: {'; '.join(differences)}")
        parameters = dict(model.named_parameters())
        weights = read_tensors(path / WEIGHTS, {name: p.shape for name, p in parameters.items()})
        saved = read_tensors(path / TRAINING) | read_sharded(path, parameters)
        raw_weights = weights if self.ema is None else _with_prefix("weight.", saved)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(like(raw_weights[name], parameter))
                self.optimizer.restore(parameter, _moments(saved, name, parameter))
            # In place: CUDA graphs will be captured with this memory.
            for name, buffer in training_buffers(model).items():
                buffer.copy_(saved.get(f"buffer.{name}", buffer))  # missing from old checkpoints
        if self.ema is not None:
            self.ema.restore(weights)
        self.task.load_carried_state(model, _with_prefix("carried.", saved))
        self.guarded_update.restore(_with_prefix("guard.", saved))
        if random := _with_prefix(random_prefix(rank()), saved):  # not if there were fewer processes
            restore_random_state(random, model.device)
        state = build(TrainState, record["state"], str(path))
        if state.finished and run.manifest.extends_training(state.step):
            state = replace(state, finished=False)
        state = replace(state, devices=tuple(map(provenance.recorded_device, state.devices)))
        if environment.device not in state.devices and not state.finished:
            state = replace(state, devices=(*state.devices, environment.device))
        for note in differences:
            self.display.print(f"note: {note}")
        return state


def finish_checkpoint(run: Run, state: TrainState) -> None:
    """Restore the manifest if it is missing, and remove all checkpoints but the newest `train.keep` and the best."""
    if not (run.folder / MANIFEST).exists():  # the folder was removed or renamed while training
        run.manifest.write(run.folder)
    best = state.best and checkpoint_path(run.folder, state.best.step)
    for old in [old for old in run.checkpoints if old != best][: -run.recipe.train.keep]:
        remove_folder(old)


def random_prefix(number: int) -> str:
    """Return the prefix of the names of a process's random state in a checkpoint."""
    return f"random.{number}." if number else "random."


def build_train_step(task: Task, model: Network, config: TrainConfig, environment: RunEnvironment) -> TrainStep[Any]:
    """Return the function that computes loss and gradients of a batch; FSDP replaces the parameters of the model."""
    prepare_blocks(model, compiled=environment.compiled, recompute=config.recompute)
    if environment.processes * config.accumulate > 1:
        return SplitTrainStep(parallelize(task, model, config), environment.precision, config.clip)
    step_class = CudaGraphTrainStep if environment.graphs else TrainStep
    return step_class(model, partial(task.loss, model), environment.precision, config.clip)


def seconds_per_step(task: Task, model: Network, config: TrainConfig, count: int = 3) -> float:
    """Return the mean time of `count` training steps, on batches spread over an epoch; changes the model."""
    environment = current_environment(model, task, config)
    train_step = build_train_step(task, model, config, environment)
    optimizer = build_optimizer(model, config)
    batches = task.epoch(0)
    seconds = []
    model.train()
    for number in range(0, len(batches), -(-len(batches) // count)):
        for _ in range(2):  # the first step on a batch also compiles and captures kernels
            began = time.monotonic()
            batch = prepare(task, batches[number], config.accumulate, filled=environment.graphs).to(model.device)
            torch.stack(list(train_step(batch))).tolist()
            optimizer.step(config.lr)
            elapsed = time.monotonic() - began
        seconds.append(elapsed)
    return sum(seconds) / len(seconds)


class Step(NamedTuple):
    """Position and examples of one step of the run."""

    epoch: int
    number: int  # of the batch in its epoch
    rows: list[int]  # indices of its examples
    start: float  # fraction of the run before this step
    end: float  # fraction of the run after this step


def remaining_steps(task: Task, epochs: int, state: TrainState) -> Iterator[Step]:
    """Yield every step from `state` to the end of the run; none if it is finished."""
    for epoch in range(state.epoch, epochs if not state.finished else 0):
        batches = task.epoch(epoch)
        for number in range(state.batch if epoch == state.epoch else 0, len(batches)):
            start, end = ((epoch + count / len(batches)) / epochs for count in (number, number + 1))
            yield Step(epoch, number, batches[number], start, end)


def prepare(task: Task, rows: list[int], accumulate: int, *, filled: bool) -> Any:
    """Return a batch, or the parts of it that this process computes."""
    batch: Any = task.batch(rows, padded_to_shape=filled)
    return batch if world_size() * accumulate == 1 else split(batch, accumulate)


class Prefetcher:
    """Iterates over steps and their batches; the next batch can be built ahead, since it depends on its step alone."""

    def __init__(
        self, task: Task, steps: Iterator[Step], device: torch.device, accumulate: int, *, filled: bool
    ) -> None:
        self.task = task
        self.steps = steps
        self.device = device
        self.accumulate = accumulate
        self.filled = filled
        self._ready: list[tuple[Step, Any]] = []

    def prefetch(self) -> None:
        """Build the next batch, unless it is ready or there is none."""
        if not self._ready and (step := next(self.steps, None)) is not None:
            batch = prepare(self.task, step.rows, self.accumulate, filled=self.filled)
            self._ready.append((step, batch.to(self.device)))

    def __iter__(self) -> "Prefetcher":
        return self

    def __next__(self) -> tuple[Step, Any]:
        self.prefetch()
        if not self._ready:
            raise StopIteration
        return self._ready.pop()


def _moments(saved: dict[str, Tensor], name: str, parameter: Tensor) -> dict[str, Tensor]:
    """Return the optimizer state of one parameter, on its device."""
    moments = _with_prefix(f"optimizer.{name}.", saved)
    return {key: like(value, parameter) for key, value in moments.items() if "." not in key}


def _with_prefix(prefix: str, saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, keyed by the rest of the name."""
    return {name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)}
