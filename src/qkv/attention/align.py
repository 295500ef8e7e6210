"""Alignments: from the scores of a query to the weights of its keys."""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import nn

from qkv.errors import InputError
from qkv.types import Float, Tensor


class Align(nn.Module, ABC):
    """Turns scores into weights; keys that the mask forbids come with the lowest finite score."""

    @abstractmethod
    def forward(
        self, scores: Float[Tensor, "batch heads query key"], query: Float[Tensor, "batch heads query dim"]
    ) -> Float[Tensor, "batch heads query key"]:
        """The weights of each query; those of forbidden keys are set to zero afterwards."""

    def log_sum_exp(self, scores: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query"] | None:
        """The logarithm of what the weights are divided by; None where that has no meaning."""
        return None


@final
class Softmax(Align):
    """exp(s / T) / sum exp(s / T): every key gets a share (soft attention)."""

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not temperature > 0:
            raise InputError(f"temperature must be positive, not {temperature}")
        self.temperature = temperature

    def forward(
        self, scores: Float[Tensor, "batch heads query key"], query: Float[Tensor, "batch heads query dim"]
    ) -> Float[Tensor, "batch heads query key"]:
        return torch.softmax(self._cooled(scores), dim=-1)

    def log_sum_exp(self, scores: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query"]:
        """log sum exp(s / T) over the keys that are allowed; -inf where none is."""
        lowest = torch.finfo(scores.dtype).min
        return self._cooled(scores).masked_fill(scores == lowest, -torch.inf).logsumexp(dim=-1)

    def _cooled(self, scores: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query key"]:
        if self.temperature == 1.0:
            return scores
        # A forbidden score must stay finite: a row of nothing but -inf has no softmax.
        return (scores / self.temperature).clamp_min(torch.finfo(scores.dtype).min)
