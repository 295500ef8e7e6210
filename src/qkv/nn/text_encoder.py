"""What every model that reads a text and says something of it offers to tasks, whatever it is made of."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from qkv.nn.labels import label_names
from qkv.types import Float, Int, Tensor


class TextEncoder(nn.Module, ABC):
    """Reads a text both ways: `model.say(tokens, lengths)` is what its head says of it.

    A token is a number, or the numbers of a word's characters.
    """

    config: Any
    tokenizer: Any = None  # what `qkv.load` found beside the weights; the model itself never looks at it

    @abstractmethod
    def forward(
        self,
        tokens: Int[Tensor, "batch length *characters"],
        segments: Int[Tensor, "batch length"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """The state of each token; what comes after a row's length is not looked at."""

    @abstractmethod
    def logits(self, hidden: Float[Tensor, "batch length dim"]) -> Any:
        """What its head says of the text, [batch, labels], or of each token, [batch, length, labels]."""

    def say(self, tokens: Int[Tensor, "batch length *characters"], lengths: Int[Tensor, "batch"]) -> Any:
        """What its head says of texts that have so many tokens."""
        return self.logits(self(tokens, lengths=lengths))

    @property
    def labels(self) -> tuple[str, ...]:
        """What the labels of its head are called; where nobody named them, as transformers calls them."""
        return label_names(self.config.label_names, self.config.labels)

    @property
    def width(self) -> int:
        """How many numbers the state of a token has."""
        return int(self.config.dim)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device
