"""The training loop."""

import math
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from qkv.errors import NotFinite
from qkv.hub import Network
from qkv.tasks.task import Batch, Task
from qkv.tasks.train_config import TrainConfig
from qkv.training.display import Display
from qkv.training.ema import EMA
from qkv.training.environment import RunEnvironment, current_environment
from qkv.training.log import Log
from qkv.training.run import LOG, Best, Run, TrainState
from qkv.training.step import CudaGraphTrainStep, TrainStep

LOG_EVERY = 20  # steps


def train(run: Run, task: Task, model: Network, data: str, display: Display) -> TrainState:
    """Train to the end of the recipe, from the newest checkpoint if there is one; Ctrl-C saves and returns early."""
    trainer = Trainer(run, task, model, data, display)
    with Interrupt() as interrupt, Log(run.folder / LOG, trainer.state.step + 1) as log, display:
        return trainer.train(log, interrupt)


class Interrupt:
    """True once SIGINT or SIGTERM was received, to stop after the step; a second signal raises KeyboardInterrupt."""

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
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True


class Trainer:
    """The model, the optimizer and the state of a run, restored from its newest checkpoint."""

    def __init__(self, run: Run, task: Task, model: Network, data: str, display: Display) -> None:
        self.run, self.task, self.model, self.data, self.display = run, task, model, data, display
        self.config = config = run.recipe.train
        self.optimizer = adamw(model, config)
        self.ema = EMA(model, config.ema) if config.ema else None
        self.averaged = model if self.ema is None else self.ema.module  # validated and saved
        self.environment = current_environment(model.device, config, capturable=task.capturable)
        self.state, notes = run.restore(task, model, self.optimizer, self.ema, data, self.environment)
        for note in notes:
            display.print(f"note: {note}")
        run.truncate_log(self.state)
        self.train_step = build_train_step(task, model, config, self.environment)
        self.saved = self.state if run.checkpoints else None

    def train(self, log: Log, interrupt: Interrupt) -> TrainState:
        """Run the remaining steps; after an interrupt, save and return."""
        config = self.config
        began, clock, tokens = time.monotonic() - self.state.seconds, time.monotonic(), 0
        steps = remaining_steps(self.task, config.epochs, self.state)
        batches = Prefetcher(self.task, steps, self.model.device, filled=self.environment.graphs)
        for step, batch in batches:
            rate = learning_rate(config, self.state.step, step.start)
            loss, norm = self.update(batch, batches, rate)
            tokens += batch.tokens
            now = time.monotonic()
            self.advance(step, now - began)
            if self.state.step % LOG_EVERY == 0 or self.state.step == 1 or step.end == 1.0:
                speed, clock, tokens = tokens / (now - clock), now, 0
                log.write(self.state.step, "train", {"loss": loss, "norm": norm, "lr": rate, "tokens_per_s": speed})
                self.display.step(step.epoch + 1, config.epochs, step.end, loss, speed, self.task.unit)
            if self.state.step % config.validate_every == 0:
                self.validate(log)
                if config.patience and self.state.evals_since_best >= config.patience:
                    failed = self.state.evals_since_best
                    self.display.print(f"early stopping: {config.best_by} has not improved in {failed} validations")
                    break
                clock, tokens = time.monotonic(), 0  # the reported speed is that of training
            stopping = bool(interrupt)  # read once: a signal between two reads must not stop without saving
            if self.state.step % config.save_every == 0 or stopping:
                self.save()
            if stopping:
                return self.state
        if not self.state.finished:
            if self.state.validated < self.state.step:
                self.state = validate(self.task, self.averaged, config, self.state, log, self.display)
            self.state = replace(self.state, finished=True, seconds=time.monotonic() - began)
            self.save()
        return self.state

    def update(self, batch: Batch, batches: "Prefetcher", rate: float) -> tuple[float, float]:
        """Update the weights; return the loss and the norm of the gradient before clipping."""
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        output = self.train_step(batch)
        batches.prefetch()  # overlap host work with the GPU
        loss, norm = torch.stack(list(output)).tolist()
        require_finite(loss, "loss", self.state, self.run)
        require_finite(norm, "gradient", self.state, self.run)
        self.optimizer.step()
        return loss, norm

    def advance(self, step: "Step", seconds: float) -> None:
        """Count a step, and average the weights."""
        count, batch = self.state.step + 1, step.number + 1
        self.state = replace(self.state, step=count, epoch=step.epoch, batch=batch, seconds=seconds)
        if self.ema is not None:
            self.ema.update(self.state.step)

    def validate(self, log: Log) -> None:
        """Validate the averaged weights, and save a checkpoint if they are the best so far."""
        self.state = validate(self.task, self.averaged, self.config, self.state, log, self.display)
        if self.state.best is not None and self.state.best.step == self.state.step:
            self.save()

    def save(self) -> None:
        """Write a checkpoint, unless that of this state exists."""
        if self.saved == self.state:
            return
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise NotFinite(f"step {self.state.step}: a weight is not finite; {last_checkpoint(self.run)}")
        self.run.save(self.state, self.task, self.model, self.optimizer, self.ema, self.data, self.environment)
        self.saved = self.state


def build_train_step(task: Task, model: Network, config: TrainConfig, environment: RunEnvironment) -> TrainStep[Any]:
    """Return the function that computes loss and gradients of a batch."""
    step_class = CudaGraphTrainStep if environment.graphs else TrainStep
    return step_class(model, partial(task.loss, model), environment.precision, config.clip)


def seconds_per_step(task: Task, model: Network, config: TrainConfig, count: int = 3) -> float:
    """Return the mean time of `count` training steps, on batches spread over an epoch; changes the model."""
    environment = current_environment(model.device, config, capturable=task.capturable)
    train_step = build_train_step(task, model, config, environment)
    optimizer = adamw(model, config)
    batches = task.epoch(0)
    seconds = []
    model.train()
    for number in range(0, len(batches), -(-len(batches) // count)):
        for _ in range(2):  # the first step on a batch also compiles and captures kernels
            began = time.monotonic()
            batch = task.batch(batches[number], padded_to_shape=environment.graphs).to(model.device)
            torch.stack(list(train_step(batch))).tolist()
            optimizer.step()
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


class Prefetcher:
    """Iterates over steps and their batches; the next batch can be built ahead, since it depends on its step alone."""

    def __init__(self, task: Task, steps: Iterator[Step], device: torch.device, *, filled: bool) -> None:
        self.task = task
        self.steps = steps
        self.device = device
        self.filled = filled
        self._ready: list[tuple[Step, Batch]] = []

    def prefetch(self) -> None:
        """Build the next batch, unless it is ready or there is none."""
        if not self._ready and (step := next(self.steps, None)) is not None:
            self._ready.append((step, self.task.batch(step.rows, padded_to_shape=self.filled).to(self.device)))

    def __iter__(self) -> "Prefetcher":
        return self

    def __next__(self) -> tuple[Step, Batch]:
        self.prefetch()
        if not self._ready:
            raise StopIteration
        return self._ready.pop()


def learning_rate(config: TrainConfig, step: int, done: float) -> float:
    """Return the learning rate at `step` (from 0), when the fraction `done` of the run is over.

    Linear warmup, times the decay of the config.
    """
    warmup = min(1.0, (step + 1) / (config.warmup + 1))
    match config.decay:
        case "constant":
            decay = 1.0
        case "linear":
            decay = 1.0 - done
        case "cosine":
            decay = 0.5 * (1.0 + math.cos(math.pi * done))
        case "inverse_sqrt":
            decay = min(1.0, math.sqrt((config.warmup + 1) / (step + 1)))
    return config.lr * warmup * decay


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW over the trainable parameters, with weight decay on matrices only (not on biases and norms)."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trainable if parameter.ndim >= 2]
    vectors = [parameter for parameter in trainable if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.98), fused=True)


def validate(
    task: Task, model: Network, config: TrainConfig, state: TrainState, log: Log, display: Display
) -> TrainState:
    """Evaluate on the validation data and return the state with `best` and `evals_since_best` updated."""
    model.eval()
    scores = task.validate(model)
    metric, value = task.metrics[config.best_by], scores[config.best_by]
    state = replace(state, validated=state.step, evals_since_best=state.evals_since_best + 1)
    if math.isfinite(value) and (state.best is None or metric.at_least_as_good(value, state.best.value)):
        state = replace(state, best=Best(state.step, value), evals_since_best=0)
    log.write(state.step, "valid", scores)
    display.validated(metric, value, state.best)
    return state


def require_finite(value: float, name: str, state: TrainState, run: Run) -> None:
    """Raise NotFinite before an update with a non-finite loss or gradient."""
    if math.isfinite(value):
        return
    raise NotFinite(
        f"step {state.step + 1}: the {name} is not finite ({value}); stopped before the update; "
        f"{last_checkpoint(run)}; try a lower train.lr, a longer train.warmup or precision float32"
    )


def last_checkpoint(run: Run) -> str:
    return f"the last checkpoint is {run.checkpoints[-1]}" if run.checkpoints else "no checkpoint has been written yet"
