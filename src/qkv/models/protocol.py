"""What generation, training and tasks rely on; every encoder-decoder honours it, whatever it is made of."""

from typing import Any, Protocol, TypeVar

import torch

from qkv.types import Float, Int, Tensor

Memory = TypeVar("Memory")
State = TypeVar("State")


class EncoderDecoder(Protocol[Memory, State]):
    """Reads a source, writes a target one token at a time; states are frozen, and `qkv.nn.state.select` picks rows."""

    config: Any

    @property
    def device(self) -> torch.device: ...

    def encode(
        self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, "batch"] | None = None
    ) -> Memory: ...

    def decode(
        self, target: Int[Tensor, "batch target"], memory: Memory
    ) -> Float[Tensor, "batch target vocabulary"]: ...

    def start(self, memory: Memory) -> State: ...

    def step(self, token: Int[Tensor, "batch"], state: State) -> tuple[Float[Tensor, "batch vocabulary"], State]: ...
