"""Interfaces of autoregressive decoders and encoder-decoders, as used by search, training and tasks."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from qkv.attention.layers import attention_layers
from qkv.types import Float, Int, Tensor

Memory = TypeVar("Memory")
State = TypeVar("State")


class Decoder(nn.Module, ABC, Generic[Memory, State]):
    """Decodes a target token by token, conditioned on a memory (an encoded text or image).

    Memories and states are frozen dataclasses of tensors with the batch first: `qkv.nn.state.select` picks their rows.
    """

    config: Any
    tokenizer: Any = None  # set by `qkv.load`; not used by the model itself

    @abstractmethod
    def init_state(self, memory: Memory) -> State:
        """Return the decoder state before the first token."""

    def advance(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """Return the logits after each of `tokens` (at least one), and the state after the last.

        A subclass overrides either this, for any number of tokens at once, or `step`, for one.
        """
        logits_per_step = []
        for token in tokens.unbind(1):
            logits, state = self.step(token, state)
            logits_per_step.append(logits)
        return torch.stack(logits_per_step, dim=1), state

    def decode(self, target: Int[Tensor, "batch target"], memory: Memory) -> Float[Tensor, "batch target vocabulary"]:
        """Return the logits after each token of `target` (teacher forcing)."""
        logits, _ = self.advance(target, self.init_state(memory))
        return logits

    def step(self, token: Int[Tensor, "batch"], state: State) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        """Return the logits after one more token, and the new state."""
        logits, state = self.advance(token[:, None], state)
        return logits[:, 0], state

    @property
    def alignment_layers(self) -> tuple[str, ...]:
        """Names (as in `watch`) of the decoder's attention layers over the source, most informative first.

        By default the last layer comes first. Empty for a model without attention over the source.
        """
        layers = (layer for layer in attention_layers(self) if not layer.startswith("encoder"))
        return tuple(layer for layer in reversed([*layers]) if not layer.endswith(".self"))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


class EncoderDecoder(Decoder[Memory, State]):
    """Encodes a source text and decodes a target text."""

    @abstractmethod
    def encode(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, "batch"] | None = None) -> Memory:
        """Encode the source; without lengths, no row of the batch is padded."""

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        source_lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch target vocabulary"]:
        return self.decode(target, self.encode(source, source_lengths))
