"""The training loop."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from qkv.errors import NotFinite
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.runtime.device import autocast
from qkv.tasks.translation import TranslationTask
from qkv.training.display import Display
from qkv.training.interrupt import Interrupt
from qkv.training.log import Log
from qkv.training.recipe import TrainConfig
from qkv.training.run import LOG, Best, Place, Run
from qkv.training.schedule import learning_rate

LOG_EVERY = 20  # steps
LOWER_IS_BETTER = {"loss"}


def train(run: Run, task: TranslationTask, model: EncoderDecoder[Any, Any], data: str, display: Display) -> Place:
    """Train to the end of the recipe, from the newest checkpoint if there is one; Ctrl-C saves and returns early."""
    config = run.recipe.train
    device = model.device
    optimizer = adamw(model, config)
    place, notes = run.restore(model, optimizer, data)
    for note in notes:
        display.say(f"note: {note}")
    run.truncate_log(place.step)
    precision = config.precision if config.precision != "auto" else "bfloat16" if device.type == "cuda" else "float32"
    saved = place if run.checkpoints else None

    def save() -> None:
        nonlocal saved
        if saved != place:
            run.save(place, model, optimizer, task.vocabulary, data)
            saved = place

    with Interrupt() as interrupt, Log(run.folder / LOG, place.step + 1) as log, display:
        began, clock, tokens = time.monotonic() - place.seconds, time.monotonic(), 0
        for epoch, number, rows, done in steps_ahead(task, config.epochs, place):
            model.train()
            batch = task.batch(rows).to(device)
            rate = learning_rate(config, place.step, done)
            for group in optimizer.param_groups:
                group["lr"] = rate
            with autocast(device, precision):
                loss = task.loss(model, batch)
            stop_unless_finite(loss.item(), "loss", place, run)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip).item()
            stop_unless_finite(norm, "gradient", place, run)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

            tokens += batch.tokens
            now = time.monotonic()
            place = replace(place, step=place.step + 1, epoch=epoch, batch=number + 1, seconds=now - began)
            if place.step % LOG_EVERY == 0:
                speed, clock, tokens = tokens / (now - clock), now, 0
                log.write(place.step, "train", {"loss": loss.item(), "norm": norm, "lr": rate, "tokens_per_s": speed})
                display.step(
                    epoch=epoch + 1, epochs=config.epochs, done=done, loss=loss.item(), tokens_per_second=speed
                )
            if place.step % config.validate_every == 0:
                place = validate(task, model, config, place, log, display)
                clock, tokens = time.monotonic(), 0  # the speed shown is that of training
                if place.best is not None and place.best.step == place.step:
                    save()
            stopping = bool(interrupt)  # asked once: a signal between two looks must not stop us unsaved
            if place.step % config.save_every == 0 or stopping:
                save()
            if stopping:
                return place
        if not place.finished:
            place = validate(task, model, config, place, log, display)
            place = replace(place, finished=True, seconds=time.monotonic() - began)
            save()
    return place


def steps_ahead(task: TranslationTask, epochs: int, place: Place) -> Iterator[tuple[int, int, list[int], float]]:
    """(epoch, number of the batch, its rows, share of the run that is done) for every step from `place` on."""
    for epoch in range(place.epoch, epochs):
        batches = task.epoch(epoch)
        for number in range(place.batch if epoch == place.epoch else 0, len(batches)):
            yield epoch, number, batches[number], (epoch + number / len(batches)) / epochs


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; weight decay acts on matrices, not on biases and norms."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.98), fused=True)


def validate(
    task: TranslationTask,
    model: EncoderDecoder[Any, Any],
    config: TrainConfig,
    place: Place,
    log: Log,
    display: Display,
) -> Place:
    """Look at the validation pairs; the place that comes back knows whether this was the best so far."""
    model.eval()
    scores = task.validate(model)
    value = scores[config.best_by]
    sign = -1.0 if config.best_by in LOWER_IS_BETTER else 1.0
    if math.isfinite(value) and (place.best is None or sign * value >= sign * place.best.value):
        place = replace(place, best=Best(place.step, value))
    log.write(place.step, "valid", scores)
    display.validated(scores, config.best_by, place.best)
    return place


def stop_unless_finite(value: float, what: str, place: Place, run: Run) -> None:
    """Raise before an update that would spoil the weights."""
    if math.isfinite(value):
        return
    kept = f"the last good checkpoint is {run.checkpoints[-1]}" if run.checkpoints else "no checkpoint was written yet"
    raise NotFinite(
        f"step {place.step + 1}: the {what} is not finite ({value}); stopped before the update; {kept}; "
        "try a lower train.lr, a longer train.warmup or precision float32"
    )
