"""The average of the weights over training, which is often better than the weights it ends with."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from qkv.types import Tensor


class Average:
    """The exponential moving average of a model's weights (Polyak and Juditsky 1992 for the plain mean).

    a_t = d_t a_{t-1} + (1 - d_t) w_t,   d_t = min(decay, (1 + t) / (10 + t))

    The decay rises with the steps made, or the random weights of the beginning would stay in it for long. With a decay
    of 0 there is no average: the weights themselves are used.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights = dict(model.named_parameters()) if decay else {}
        self._averages = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after `step` updates."""
        if self._averages:
            share = 1.0 - min(self.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(self._averages.values()), list(self._weights.values()), share)

    @contextmanager
    def used(self) -> Iterator[dict[str, Tensor]]:
        """Let the model have the averages for its weights, for a while; gives the weights that wait meanwhile."""
        waiting = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._put(self._averages)
        try:
            yield waiting
        finally:
            self._put(waiting)

    @torch.no_grad()
    def restore(self, waiting: Mapping[str, Tensor]) -> None:
        """Go on from a model that has the averages for its weights, with those that waited when it was saved."""
        for name, weight in self._weights.items():
            self._averages[name].copy_(weight)
        self._put(waiting)

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        # Into the same memory: the optimizer, and a graph that was captured, hold on to it.
        for name, value in values.items():
            self._weights[name].copy_(value)
