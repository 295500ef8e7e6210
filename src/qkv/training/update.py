"""Updates that are skipped if the gradient is not finite or unusually large, and their delayed reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from qkv.tasks.base.train_config import TrainConfig
from qkv.training.optimizer import Optimizer
from qkv.training.step import StepOutput
from qkv.types import Float, Tensor

DECAY = 0.99  # of the running average of the gradient norm
MIN_COUNT = 100  # updates before the average is used


class StepReport(NamedTuple):
    """Loss and gradient norm of a step, and whether its update was skipped."""

    step: int
    loss: float
    norm: float
    skipped: bool


@dataclass(frozen=True)
class PendingReport:
    """A report on its way from the device."""

    step: int
    values: Float[Tensor, "3"]  # loss, norm, skipped
    copied: torch.cuda.Event | None

    def read(self) -> StepReport:
        """Wait for the values."""
        if self.copied is not None:
            self.copied.synchronize()
        loss, norm, skipped = self.values.tolist()
        return StepReport(self.step, loss, norm, bool(skipped))


class GuardedUpdate:
    """Updates the weights unless the loss or the gradient is not finite, or the gradient norm is a spike.

    A spike is a norm above `train.skip_spikes` times its running average. Everything is computed on the device, so that
    the host can prepare the next step meanwhile.
    """

    def __init__(self, optimizer: Optimizer, config: TrainConfig, device: torch.device) -> None:
        self.optimizer = optimizer
        self.factor = config.skip_spikes
        self.average, self.count = (torch.zeros((), device=device) for _ in range(2))  # of the norm

    def __call__(self, step: int, output: StepOutput, rate: float) -> PendingReport:
        """Update the weights, and return the report of the step."""
        loss, norm = output
        skip = ~(loss.isfinite() & norm.isfinite())
        if self.factor:
            skip = skip | ((norm > self.factor * self.average) & (self.count >= MIN_COUNT))
            # The average of the first norms, then an exponential moving average.
            share = (1.0 / (self.count + 1)).clamp(min=1.0 - DECAY)
            self.average.copy_(torch.where(skip, self.average, torch.lerp(self.average, norm, share)))
            self.count += (~skip).to(self.count.dtype)
        skipped = skip.to(torch.float32)
        self.optimizer.step(rate, skipped)
        values = torch.stack((loss.float(), norm.float(), skipped))
        if not values.is_cuda:
            return PendingReport(step, values, None)
        values = values.to("cpu", non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        return PendingReport(step, values, copied)

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs to continue."""
        return {"average": self.average, "count": self.count} if self.factor else {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, value in state.items():
            getattr(self, name).copy_(value)
