"""What every model that reads a text and says something of it offers to tasks, whatever it is made of."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from qkv.types import Float, Int, Tensor


class TextEncoder(nn.Module, ABC):
    """Reads a text both ways: `model.logits(model(tokens, lengths=lengths))` is what it says of it."""

    config: Any
    tokenizer: Any = None  # what `qkv.load` found beside the weights; the model itself never looks at it

    @abstractmethod
    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """The state of each token; what comes after a row's length is not looked at."""

    @abstractmethod
    def logits(self, hidden: Float[Tensor, "batch length dim"]) -> Any:
        """What its head says of the text, [batch, labels], or of each token, [batch, length, labels]."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device
