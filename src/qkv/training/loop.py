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
from qkv.interop import Network
from qkv.tasks.task import Batch, Task
from qkv.training.average import Average
from qkv.training.circumstances import present_circumstances
from qkv.training.display import Display
from qkv.training.interrupt import Interrupt
from qkv.training.log import Log
from qkv.training.passes import CapturedPasses, Passes
from qkv.training.recipe import TrainConfig
from qkv.training.run import LOG, Best, Place, Run
from qkv.training.schedule import learning_rate

LOG_EVERY = 20  # steps


def train(run: Run, task: Task, model: Network, data: str, display: Display) -> Place:
    """Train to the end of the recipe, from the newest checkpoint if there is one; Ctrl-C saves and returns early."""
    config = run.recipe.train
    device = model.device
    optimizer = adamw(model, config)
    average = Average(model, config.ema)
    circumstances = present_circumstances(device, config, capturable=task.capturable)
    place, notes = run.restore(task, model, optimizer, average, data, circumstances)
    for note in notes:
        display.say(f"note: {note}")
    run.truncate_log(place)
    kind = CapturedPasses if circumstances.graphs else Passes
    passes = kind(model, partial(task.loss, model), circumstances.precision, config.clip)
    saved = place if run.checkpoints else None

    def save() -> None:
        nonlocal saved
        if saved != place:
            if not all(parameter.isfinite().all() for parameter in model.parameters()):
                raise NotFinite(f"step {place.step}: a weight is not finite; {last_good(run)}")
            run.save(place, task, model, optimizer, average, data, circumstances)
            saved = place

    with Interrupt() as interrupt, Log(run.folder / LOG, place.step + 1) as log, display:
        began, clock, tokens = time.monotonic() - place.seconds, time.monotonic(), 0
        ahead = Prepared(task, steps_ahead(task, config.epochs, place), device, filled=circumstances.graphs)
        for step, batch in ahead:
            model.train()
            rate = learning_rate(config, place.step, step.behind)
            for group in optimizer.param_groups:
                group["lr"] = rate
            outcome = passes(batch)
            ahead.prepare()  # a GPU is still at work
            loss, norm = torch.stack(list(outcome)).tolist()
            stop_unless_finite(loss, "loss", place, run)
            stop_unless_finite(norm, "gradient", place, run)
            optimizer.step()

            tokens += batch.tokens
            now = time.monotonic()
            place = replace(place, step=place.step + 1, epoch=step.epoch, batch=step.number + 1, seconds=now - began)
            average.update(place.step)
            if place.step % LOG_EVERY == 0 or place.step == 1 or step.done == 1.0:
                speed, clock, tokens = tokens / (now - clock), now, 0
                log.write(place.step, "train", {"loss": loss, "norm": norm, "lr": rate, "tokens_per_s": speed})
                display.step(step.epoch + 1, config.epochs, step.done, loss, speed, task.unit)
            if place.step % config.validate_every == 0:
                place = validate(task, model, average, config, place, log, display)
                clock, tokens = time.monotonic(), 0  # the speed shown is that of training
                if place.best is not None and place.best.step == place.step:
                    save()
                if config.patience and place.stale >= config.patience:
                    display.say(f"{place.stale} validations without a better {config.best_by}: enough")
                    break
            stopping = bool(interrupt)  # asked once: a signal between two looks must not stop us unsaved
            if place.step % config.save_every == 0 or stopping:
                save()
            if stopping:
                return place
        if not place.finished:
            if place.validated < place.step:
                place = validate(task, model, average, config, place, log, display)
            place = replace(place, finished=True, seconds=time.monotonic() - began)
            save()
    return place


class Step(NamedTuple):
    """One step to come."""

    epoch: int
    number: int  # of the batch in its epoch
    rows: list[int]  # the examples in it
    behind: float  # the share of the run that lies behind before this step
    done: float  # and after it


def steps_ahead(task: Task, epochs: int, place: Place) -> Iterator[Step]:
    """Every step from `place` to the end of the run; none from the place of a run that is finished."""
    for epoch in range(place.epoch, epochs if not place.finished else 0):
        batches = task.epoch(epoch)
        for number in range(place.batch if epoch == place.epoch else 0, len(batches)):
            behind, done = ((epoch + count / len(batches)) / epochs for count in (number, number + 1))
            yield Step(epoch, number, batches[number], behind, done)


class Prepared:
    """Steps with their batches, of which the next can be made ahead of time: it depends on its step alone."""

    def __init__(self, task: Task, steps: Iterator[Step], device: torch.device, *, filled: bool) -> None:
        self.task = task
        self.steps = steps
        self.device = device
        self.filled = filled
        self._ready: list[tuple[Step, Batch]] = []

    def prepare(self) -> None:
        """Make the next batch, unless that was done, or there is none."""
        if not self._ready and (step := next(self.steps, None)) is not None:
            self._ready.append((step, self.task.batch(step.rows, padded_to_shape=self.filled).to(self.device)))

    def __iter__(self) -> "Prepared":
        return self

    def __next__(self) -> tuple[Step, Batch]:
        self.prepare()
        if not self._ready:
            raise StopIteration
        return self._ready.pop()


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; weight decay acts on matrices, not on biases and norms, and nothing on what is frozen."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in learned if parameter.ndim >= 2]
    others = [parameter for parameter in learned if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.98), fused=True)


def validate(
    task: Task, model: Network, average: Average, config: TrainConfig, place: Place, log: Log, display: Display
) -> Place:
    """Look at the validation data; the place that comes back knows whether this was the best so far."""
    model.eval()
    with average.used():
        scores = task.validate(model)
    metric, value = task.metrics[config.best_by], scores[config.best_by]
    place = replace(place, validated=place.step, stale=place.stale + 1)
    if math.isfinite(value) and (place.best is None or metric.at_least_as_good(value, place.best.value)):
        place = replace(place, best=Best(place.step, value), stale=0)
    log.write(place.step, "valid", scores)
    display.validated(metric, value, place.best)
    return place


def stop_unless_finite(value: float, what: str, place: Place, run: Run) -> None:
    """Raise before an update that would spoil the weights."""
    if math.isfinite(value):
        return
    raise NotFinite(
        f"step {place.step + 1}: the {what} is not finite ({value}); stopped before the update; {last_good(run)}; "
        "try a lower train.lr, a longer train.warmup or precision float32"
    )


def last_good(run: Run) -> str:
    return f"the last good checkpoint is {run.checkpoints[-1]}" if run.checkpoints else "no checkpoint was written yet"
