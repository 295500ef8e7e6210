"""Exponential moving average (EMA) of the model weights."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from qkv.training.distributed import like, local
from qkv.types import Tensor


class EMA:
    """A copy of a model, `module`, with the exponential moving average of its weights (Polyak and Juditsky 1992).

    a_t = d_t a_{t-1} + (1 - d_t) w_t,   d_t = min(decay, (1 + t) / (10 + t))

    The decay grows with the step, so that the random initial weights are forgotten quickly. This is AveragedModel of
    torch.optim.swa_utils for models whose position tables, which are buffers, grow with the longest input.
    """

    def __init__(self, model: nn.Module, decay: float, module: nn.Module | None = None) -> None:
        """`module` is a copy of the model, sharded like it, if it is sharded."""
        self.decay = decay
        self.module: Any = copy.deepcopy(model) if module is None else module
        self._averages: list[Any] = [local(average.detach()) for average in self.module.parameters()]
        self._weights: list[Any] = [local(weight.detach()) for weight in model.parameters()]

    def update(self, step: int) -> None:
        """Update the average with the weights after optimizer step `step`."""
        average = get_ema_multi_avg_fn(min(self.decay, (1 + step) / (10 + step)))
        average(self._averages, self._weights, step)

    @torch.no_grad()
    def restore(self, averages: Mapping[str, Tensor]) -> None:
        """Set the average to saved weights."""
        for name, average in self.module.named_parameters():
            average.copy_(like(averages[name], average))
