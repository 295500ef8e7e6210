"""The training loop."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from qkv.errors import NotFinite
from qkv.hub import Network
from qkv.tasks.task import Batch, Task
from qkv.tasks.train_config import TrainConfig
from qkv.training.display import Display
from qkv.training.ema import EMA
from qkv.training.environment import current_environment
from qkv.training.interrupt import Interrupt
from qkv.training.log import Log
from qkv.training.run import LOG, Best, Run, TrainState
from qkv.training.schedule import learning_rate
from qkv.training.step import CudaGraphTrainStep, TrainStep

LOG_EVERY = 20  # steps


def train(run: Run, task: Task, model: Network, data: str, display: Display) -> TrainState:
    """Train to the end of the recipe, from the newest checkpoint if there is one; Ctrl-C saves and returns early."""
    config = run.recipe.train
    device = model.device
    optimizer = adamw(model, config)
    ema = EMA(model, config.ema) if config.ema else None
    averaged = model if ema is None else ema.module  # validated and saved
    environment = current_environment(device, config, capturable=task.capturable)
    state, notes = run.restore(task, model, optimizer, ema, data, environment)
    for note in notes:
        display.print(f"note: {note}")
    run.truncate_log(state)
    step_class = CudaGraphTrainStep if environment.graphs else TrainStep
    train_step = step_class(model, partial(task.loss, model), environment.precision, config.clip)
    saved = state if run.checkpoints else None

    def save() -> None:
        nonlocal saved
        if saved != state:
            if not all(parameter.isfinite().all() for parameter in model.parameters()):
                raise NotFinite(f"step {state.step}: a weight is not finite; {last_checkpoint(run)}")
            run.save(state, task, model, optimizer, ema, data, environment)
            saved = state

    with Interrupt() as interrupt, Log(run.folder / LOG, state.step + 1) as log, display:
        began, clock, tokens = time.monotonic() - state.seconds, time.monotonic(), 0
        batches = Prefetcher(task, remaining_steps(task, config.epochs, state), device, filled=environment.graphs)
        for step, batch in batches:
            model.train()
            rate = learning_rate(config, state.step, step.start)
            for group in optimizer.param_groups:
                group["lr"] = rate
            output = train_step(batch)
            batches.prefetch()  # overlap host work with the GPU
            loss, norm = torch.stack(list(output)).tolist()
            require_finite(loss, "loss", state, run)
            require_finite(norm, "gradient", state, run)
            optimizer.step()

            tokens += batch.tokens
            now = time.monotonic()
            state = replace(state, step=state.step + 1, epoch=step.epoch, batch=step.number + 1, seconds=now - began)
            if ema is not None:
                ema.update(state.step)
            if state.step % LOG_EVERY == 0 or state.step == 1 or step.end == 1.0:
                speed, clock, tokens = tokens / (now - clock), now, 0
                log.write(state.step, "train", {"loss": loss, "norm": norm, "lr": rate, "tokens_per_s": speed})
                display.step(step.epoch + 1, config.epochs, step.end, loss, speed, task.unit)
            if state.step % config.validate_every == 0:
                state = validate(task, averaged, config, state, log, display)
                clock, tokens = time.monotonic(), 0  # the reported speed is that of training
                if state.best is not None and state.best.step == state.step:
                    save()
                if config.patience and state.evals_since_best >= config.patience:
                    display.print(
                        f"early stopping: {config.best_by} has not improved in {state.evals_since_best} validations"
                    )
                    break
            stopping = bool(interrupt)  # read once: a signal between two reads must not stop without saving
            if state.step % config.save_every == 0 or stopping:
                save()
            if stopping:
                return state
        if not state.finished:
            if state.validated < state.step:
                state = validate(task, averaged, config, state, log, display)
            state = replace(state, finished=True, seconds=time.monotonic() - began)
            save()
    return state


def seconds_per_step(task: Task, model: Network, config: TrainConfig, count: int = 3) -> float:
    """Return the mean time of `count` training steps, on batches spread over an epoch; changes the model."""
    environment = current_environment(model.device, config, capturable=task.capturable)
    step_class = CudaGraphTrainStep if environment.graphs else TrainStep
    train_step = step_class(model, partial(task.loss, model), environment.precision, config.clip)
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
