"""Exponential moving average (EMA) of the model weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from qkv.types import Tensor


class EMA(AveragedModel):
    """A copy of a model, `module`, with the exponential moving average of its weights (Polyak and Juditsky 1992).

    a_t = d_t a_{t-1} + (1 - d_t) w_t,   d_t = min(decay, (1 + t) / (10 + t))

    The decay grows with the step, so that the random initial weights are forgotten quickly.
    """

    module: Any  # of the class of the model

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self.decay = decay
        self.n_averaged.fill_(1)  # at 0 the first update would replace the initial weights

    def update(self, model: nn.Module, step: int) -> None:
        """Update the average with the weights after optimizer step `step`; buffers are copied."""
        self.multi_avg_fn = get_ema_multi_avg_fn(min(self.decay, (1 + step) / (10 + step)))
        self.update_parameters(model)

    @torch.no_grad()
    def restore(self, model: nn.Module, averages: Mapping[str, Tensor]) -> None:
        """Set the average to saved weights, and the buffers to those of the model."""
        for name, average in self.module.named_parameters():
            average.copy_(averages[name])
        for copied, buffer in zip(self.module.buffers(), model.buffers(), strict=True):
            copied.copy_(buffer)
