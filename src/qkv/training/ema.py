"""Exponential moving average (EMA) of the model weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from qkv.types import Tensor


class EMA:
    """Exponential moving average of a model's weights (Polyak and Juditsky 1992 for the plain mean).

    a_t = d_t a_{t-1} + (1 - d_t) w_t,   d_t = min(decay, (1 + t) / (10 + t))

    The decay grows with the step, so that the random initial weights are forgotten quickly. A decay of 0 disables the
    average: the weights themselves are used.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights = dict(model.named_parameters()) if decay else {}
        self._averages = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the averages with the weights after optimizer step `step`."""
        if self._averages:
            share = 1.0 - min(self.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(self._averages.values()), list(self._weights.values()), share)

    @contextmanager
    def applied(self) -> Iterator[dict[str, Tensor]]:
        """Replace the model's weights by their averages inside the context; yields a copy of the raw weights."""
        raw_weights = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._copy_to_model(self._averages)
        try:
            yield raw_weights
        finally:
            self._copy_to_model(raw_weights)

    @torch.no_grad()
    def restore(self, raw_weights: Mapping[str, Tensor]) -> None:
        """Resume from a model loaded with averaged weights, and the raw weights saved with it."""
        for name, weight in self._weights.items():
            self._averages[name].copy_(weight)
        self._copy_to_model(raw_weights)

    @torch.no_grad()
    def _copy_to_model(self, values: Mapping[str, Tensor]) -> None:
        # In place: the optimizer and captured CUDA graphs hold references to this memory.
        for name, value in values.items():
            self._weights[name].copy_(value)
