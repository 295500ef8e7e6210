"""Interface of models that map a sequence of vectors to a sequence of vectors, step by step."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from qkv.types import Float, Tensor

State = TypeVar("State")


class Transducer(nn.Module, ABC, Generic[State]):
    """Maps each input vector to the logits of some bits; its state summarises the previous steps.

    States are frozen dataclasses of tensors with the batch first, so a sequence can be processed in chunks.
    """

    config: Any  # has `inputs` and `outputs`: the sizes of a step's input and output
    tokenizer: Any = None  # not used

    @abstractmethod
    def init_state(self, batch: int) -> State:
        """Return the state before the first step, for `batch` sequences."""

    @abstractmethod
    def forward_from(
        self, x: Float[Tensor, "batch steps inputs"], state: State
    ) -> tuple[Float[Tensor, "batch steps outputs"], State]:
        """Return the logits of each step, and the state after the last."""

    def forward(self, x: Float[Tensor, "batch steps inputs"]) -> Float[Tensor, "batch steps outputs"]:
        logits, _ = self.forward_from(x, self.init_state(x.shape[0]))
        return logits

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device
