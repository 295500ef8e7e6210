"""What every model that reads something and then writes a text offers to search, training and tasks."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from qkv.attention.layers import attention_layers
from qkv.types import Float, Int, Tensor

Memory = TypeVar("Memory")
State = TypeVar("State")


class Writer(nn.Module, ABC, Generic[Memory, State]):
    """Writes a target token by token, by the memory of what it has read: a text, a picture.

    Memories and states are frozen dataclasses of tensors with the batch first: `qkv.nn.state.select` picks their rows.
    """

    config: Any
    tokenizer: Any = None  # what `qkv.load` found beside the weights; the model itself never looks at it

    @abstractmethod
    def start(self, memory: Memory) -> State:
        """The state before the first token."""

    def advance(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """The logits after each of some more tokens, at least one, and the state after the last.

        A model defines this, for any number of tokens at once; or `step`, and they are taken one after another.
        """
        every = []
        for token in tokens.unbind(1):
            logits, state = self.step(token, state)
            every.append(logits)
        return torch.stack(every, dim=1), state

    def decode(self, target: Int[Tensor, "batch target"], memory: Memory) -> Float[Tensor, "batch target vocabulary"]:
        """The logits after each token of `target`, all steps at once (teacher forcing)."""
        logits, _ = self.advance(target, self.start(memory))
        return logits

    def step(self, token: Int[Tensor, "batch"], state: State) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        """The logits after one more token, and the state that goes with them."""
        logits, state = self.advance(token[:, None], state)
        return logits[:, 0], state

    @property
    def alignment_layers(self) -> tuple[str, ...]:
        """The attention layers by which the decoder reads the source, named as `watch` does, the most telling first.

        Unless a model knows better, that is the last layer. A model without any has no alignment to show.
        """
        reading = (layer for layer in attention_layers(self) if not layer.startswith("encoder"))
        return tuple(layer for layer in reversed([*reading]) if not layer.endswith(".self"))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


class EncoderDecoder(Writer[Memory, State]):
    """Reads a source text, then writes a target."""

    @abstractmethod
    def encode(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, "batch"] | None = None) -> Memory:
        """Read the source; without lengths, no row of the batch is padded."""

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        source_lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch target vocabulary"]:
        return self.decode(target, self.encode(source, source_lengths))
