"""Interface of text encoders, as used by tasks."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from qkv.nn.labels import label_names
from qkv.types import Float, Int, Tensor


class TextEncoder(nn.Module, ABC):
    """Bidirectional text encoder with an optional head: `model.predict(tokens, lengths)` are the head's logits.

    A token is an id, or the character ids of a word.
    """

    config: Any
    tokenizer: Any = None  # set by `qkv.load`; not used by the model itself

    @abstractmethod
    def forward(
        self,
        tokens: Int[Tensor, "batch length *characters"],
        segments: Int[Tensor, "batch length"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the hidden state of each token; positions beyond a row's length are ignored."""

    @abstractmethod
    def logits(self, hidden: Float[Tensor, "batch length dim"]) -> Any:
        """Return the head's logits: [batch, labels] for the text, or [batch, length, labels] per token."""

    def predict(self, tokens: Int[Tensor, "batch length *characters"], lengths: Int[Tensor, "batch"]) -> Any:
        """Return the head's logits for a padded batch."""
        return self.logits(self(tokens, lengths=lengths))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the head's labels, or LABEL_0, LABEL_1, ... as in transformers if unnamed."""
        return label_names(self.config.label_names, self.config.labels)

    @property
    def width(self) -> int:
        """Size of a token's hidden state."""
        return int(self.config.dim)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device
