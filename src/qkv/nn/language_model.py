"""Interface of language models, as used by sampling, training and tasks."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from qkv.types import Float, Int, Tensor

State = TypeVar("State")


class LanguageModel(nn.Module, ABC, Generic[State]):
    """Predicts the next token: p(x_t | x_1 .. x_{t-1}).

    States are frozen dataclasses of tensors with the batch first: `qkv.nn.state.select` picks their rows. A state is
    everything the model carries over, so a text can be processed in chunks, each from the previous chunk's state.
    """

    config: Any
    tokenizer: Any = None  # set by `qkv.load`; not used by the model itself

    @abstractmethod
    def init_state(self, batch: int) -> State:
        """Return the state before the first token, for `batch` texts."""

    @abstractmethod
    def forward_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """Return the logits after each token, and the state after the last."""

    def step(self, token: Int[Tensor, "batch"], state: State) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        """Return the logits after one more token, and the new state."""
        logits, state = self.forward_from(token[:, None], state)
        return logits[:, 0], state

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        logits, _ = self.forward_from(tokens, self.init_state(tokens.shape[0]))
        return logits

    @property
    def max_length(self) -> int | None:
        """Maximum context length, or None if unbounded."""
        return getattr(self.config, "max_length", None)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def state_tensors(state: Any, name: str = "") -> dict[str, Tensor]:
    """Return every tensor of a state by its path, such as "hidden" or "layers.0.cell"."""
    if isinstance(state, Tensor):
        return {name: state}
    return {
        path: tensor for key, part in _parts(state) for path, tensor in state_tensors(part, _path(name, key)).items()
    }


def replace_tensors(state: State, tensors: Mapping[str, Tensor], name: str = "") -> State:
    """Return the state with the tensors at the given paths replaced."""
    if name in tensors:
        return tensors[name]  # type: ignore[return-value]
    parts: dict[str, Any] = {key: replace_tensors(part, tensors, _path(name, key)) for key, part in _parts(state)}
    if isinstance(state, tuple):
        return tuple(parts.values())  # type: ignore[return-value]
    return dataclasses.replace(state, **parts) if parts else state  # type: ignore[type-var]


def detach_state(state: State) -> State:
    """Return the state detached from the graph, for truncated back-propagation through time."""
    return replace_tensors(state, {name: tensor.detach() for name, tensor in state_tensors(state).items()})


def _parts(state: Any) -> list[tuple[str, Any]]:
    """Named parts of a state."""
    if isinstance(state, tuple):
        return [(str(number), part) for number, part in enumerate(state)]
    if dataclasses.is_dataclass(state):
        return [(field.name, getattr(state, field.name)) for field in dataclasses.fields(state)]
    return []


def _path(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
