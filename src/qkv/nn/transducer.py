"""What every model offers that reads a sequence of vectors and answers each with another."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from qkv.types import Float, Tensor

State = TypeVar("State")


class Transducer(nn.Module, ABC, Generic[State]):
    """A vector in, the logits of some bits out, step by step; what it knows of the steps before is its state.

    States are frozen dataclasses of tensors with the batch first, so a sequence may be read in parts.
    """

    config: Any  # with `inputs` and `outputs`: how many numbers go in and come out at each step
    tokenizer: Any = None  # vectors need none

    @abstractmethod
    def start(self, batch: int) -> State:
        """The state before the first step, for so many sequences."""

    @abstractmethod
    def read(
        self, x: Float[Tensor, "batch steps inputs"], state: State
    ) -> tuple[Float[Tensor, "batch steps outputs"], State]:
        """The logits after each step, and the state after the last."""

    def forward(self, x: Float[Tensor, "batch steps inputs"]) -> Float[Tensor, "batch steps outputs"]:
        logits, _ = self.read(x, self.start(x.shape[0]))
        return logits

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device
