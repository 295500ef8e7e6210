"""The training loop."""

import math
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from qkv.config import build
from qkv.errors import InputError, NotFinite
from qkv.hub import Network
from qkv.hub.checkpoint_manifest import write_manifest
from qkv.hub.model_folder import checkpoint_path, save_model
from qkv.hub.tensors import WEIGHTS, read_tensors, write_tensors
from qkv.runtime.device import random_state, restore_random_state
from qkv.runtime.files import atomic_folder, remove_folder
from qkv.tasks.task import Batch, Task
from qkv.tasks.train_config import TrainConfig
from qkv.training.display import Display
from qkv.training.ema import EMA
from qkv.training.environment import RunEnvironment, current_environment
from qkv.training.log import Log
from qkv.training.run import LOG, Best, Run, TrainState
from qkv.training.run_manifest import MANIFEST
from qkv.training.step import CudaGraphTrainStep, TrainStep
from qkv.types import Tensor

LOG_EVERY = 20  # steps
TRAINING = "training.safetensors"  # in a checkpoint: all that is not part of the model


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
        self.state = self.restore()
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
                if self.state.best is not None and self.state.best.step == self.state.step:
                    self.save()
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
                self.validate(log)
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
        """Evaluate the averaged weights on the validation data, and count the validations since the best one."""
        self.averaged.eval()
        scores = self.task.validate(self.averaged)
        metric, value = self.task.metrics[self.config.best_by], scores[self.config.best_by]
        state = replace(self.state, validated=self.state.step, evals_since_best=self.state.evals_since_best + 1)
        if math.isfinite(value) and (state.best is None or metric.at_least_as_good(value, state.best.value)):
            state = replace(state, best=Best(state.step, value), evals_since_best=0)
        log.write(state.step, "valid", scores)
        self.display.validated(metric, value, state.best)
        self.state = state

    def save(self) -> None:
        """Write a checkpoint, unless that of this state exists, and remove the oldest beyond `train.keep`."""
        run, state, model = self.run, self.state, self.model
        if self.saved == state:
            return
        if not all(parameter.isfinite().all() for parameter in model.parameters()):
            raise NotFinite(f"step {state.step}: a weight is not finite; {last_checkpoint(run)}")
        if not (run.folder / MANIFEST).exists():  # the folder was removed or renamed while training
            run.manifest.write(run.folder)
        tensors = {f"random.{name}": value for name, value in random_state(model.device).items()}
        tensors |= {f"carried.{name}": value.contiguous() for name, value in self.task.carried_state().items()}
        tensors |= {f"buffer.{name}": value.contiguous() for name, value in _buffers(model).items()}
        for name, parameter in model.named_parameters():
            moments = self.optimizer.state[parameter]
            tensors |= {f"optimizer.{name}.{key}": value.detach().contiguous() for key, value in moments.items()}
        if self.ema is not None:
            tensors |= {f"weight.{name}": value for name, value in model.named_parameters()}
        with atomic_folder(checkpoint_path(run.folder, state.step)) as scratch:
            save_model(self.averaged, self.task.tokenizer, scratch)
            write_tensors(tensors, scratch / TRAINING)
            write_manifest(scratch, {"state": asdict(state), "data": self.data, **asdict(self.environment)})
        best = state.best and checkpoint_path(run.folder, state.best.step)
        for old in [old for old in run.checkpoints if old != best][: -self.config.keep]:
            remove_folder(old)
        self.saved = state

    def restore(self) -> TrainState:
        """Restore model, optimizer, EMA and random state from the newest checkpoint, and return its state."""
        run, model, environment = self.run, self.model, self.environment
        if not run.checkpoints:
            return TrainState(devices=(environment.device,))
        path = run.checkpoints[-1]
        record = run.verify(path)
        if record["data"] != self.data:
            raise InputError(f"{run.folder}: the data have changed since this run was started; start a new run")
        weights = read_tensors(path / WEIGHTS, {name: p.shape for name, p in model.named_parameters()})
        saved = read_tensors(path / TRAINING)
        raw_weights = weights if self.ema is None else _with_prefix("weight.", saved)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(raw_weights[name])
                self.optimizer.state[parameter] = _moments(saved, name, parameter)
            # In place: CUDA graphs will be captured with this memory.
            for name, buffer in _buffers(model).items():
                buffer.copy_(saved.get(f"buffer.{name}", buffer))  # missing from old checkpoints
        if self.ema is not None:
            self.ema.restore(weights)
        self.task.load_carried_state(model, _with_prefix("carried.", saved))
        restore_random_state(_with_prefix("random.", saved), model.device)
        state = build(TrainState, record["state"], str(path))
        if state.finished and run.manifest.extends_training(state.step):
            state = replace(state, finished=False)
        if environment.device not in state.devices and not state.finished:
            state = replace(state, devices=(*state.devices, environment.device))
        for note in environment.differences(record):
            self.display.print(f"note: {note}")
        return state


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


def _buffers(model: Network) -> dict[str, Tensor]:
    """Return the persistent buffers of a model, such as the baseline of hard attention; used in training only."""
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in model.state_dict().items() if name not in weights}


def _moments(saved: dict[str, Tensor], name: str, parameter: Tensor) -> dict[str, Tensor]:
    """Return the optimizer state of one parameter, on its device."""
    moments = _with_prefix(f"optimizer.{name}.", saved)
    return {key: value.to(parameter.device) for key, value in moments.items() if "." not in key}


def _with_prefix(prefix: str, saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, keyed by the rest of the name."""
    return {name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)}
