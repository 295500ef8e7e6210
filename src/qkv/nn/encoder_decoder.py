"""Interfaces of source encoders, autoregressive decoders and encoder-decoders."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn

from qkv.attention.layers import attention_layers
from qkv.types import Float, Int, Tensor

Memory = TypeVar("Memory")
State = TypeVar("State")


@dataclass(frozen=True)
class EncodedStates:
    """Output of a source encoder."""

    values: Float[Tensor, "batch source dim"]  # h_i
    final: Float[Tensor, "batch layers dim"]  # final state of each layer, or the mean of h_i as one layer
    embedded: Float[Tensor, "batch source embedding_dim"]  # e_i: the embedded tokens, input of the first layer


class SourceEncoder(nn.Module, ABC):
    """Encodes a source text for any decoder.

    Each encoder has the option `dim`, the size of h_i, which defaults to that of the model.
    """

    has_final_states: ClassVar[bool] = False  # whether `final` has a state per layer, and not the mean of h_i
    final_layers: int = 1  # layers of `final`
    dim: int  # of h_i
    embed: nn.Embedding  # of the tokens; a model may tie its weight

    @abstractmethod
    def forward(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"]) -> EncodedStates:
        """Encode padded sentences."""

    @classmethod
    def check_options(cls, dim: int, options: Mapping[str, Any]) -> None:
        """Raise ConfigError if the options of an encoder do not fit `dim`."""


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

    def decode_with_sampling(
        self, target: Int[Tensor, "batch target"], memory: Memory, probability: float
    ) -> Float[Tensor, "batch target vocabulary"]:
        """`decode` with scheduled sampling: feed the model's own argmax token with some probability.

        From Bengio, Vinyals, Jaitly and Shazeer (2015).
        """
        state = self.init_state(memory)
        steps: list[Tensor] = []
        for token in target.unbind(1):
            if steps:
                sampled = torch.rand_like(token, dtype=torch.float32) < probability
                token = torch.where(sampled, steps[-1].argmax(dim=-1), token)
            logits, state = self.step(token, state)
            steps.append(logits)
        return torch.stack(steps, dim=1)

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
