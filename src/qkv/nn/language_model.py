"""What every language model offers to sampling, training and tasks, whatever it is made of."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from qkv.types import Float, Int, Tensor

State = TypeVar("State")


class LanguageModel(nn.Module, ABC, Generic[State]):
    """Reads a text and says, after each token, what may come next: p(x_t | x_1 .. x_{t-1}).

    States are frozen dataclasses of tensors with the batch first: `qkv.nn.state.select` picks their rows. What a state
    holds is all that the model remembers, so a text may be read in parts, each from the state that the last one left.
    """

    config: Any
    tokenizer: Any = None  # what `qkv.load` found beside the weights; the model itself never looks at it

    @abstractmethod
    def start(self, batch: int) -> State:
        """The state before the first token, for so many texts."""

    @abstractmethod
    def read(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """The logits after each of many tokens, all at once, and the state after the last."""

    def step(self, token: Int[Tensor, "batch"], state: State) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        """The logits after one more token, and the state that goes with them."""
        logits, state = self.read(token[:, None], state)
        return logits[:, 0], state

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        logits, _ = self.read(tokens, self.start(tokens.shape[0]))
        return logits

    @property
    def horizon(self) -> int | None:
        """How many tokens it can look at together; None: a text may go on for ever."""
        return getattr(self.config, "max_length", None)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def tensors_of(state: Any, name: str = "") -> dict[str, Tensor]:
    """Every tensor of a state by its path in it, such as "hidden" or "layers.0.cell"."""
    if isinstance(state, Tensor):
        return {name: state}
    return {path: tensor for key, part in _parts(state) for path, tensor in tensors_of(part, _path(name, key)).items()}


def with_tensors(state: State, tensors: Mapping[str, Tensor], name: str = "") -> State:
    """The same state with other tensors at the paths that `tensors` names."""
    if name in tensors:
        return tensors[name]  # type: ignore[return-value]
    parts: dict[str, Any] = {key: with_tensors(part, tensors, _path(name, key)) for key, part in _parts(state)}
    if isinstance(state, tuple):
        return tuple(parts.values())  # type: ignore[return-value]
    return dataclasses.replace(state, **parts) if parts else state  # type: ignore[type-var]


def detached(state: State) -> State:
    """The state as it is, forgetting how it came about: where back-propagation through time is cut off."""
    return with_tensors(state, {name: tensor.detach() for name, tensor in tensors_of(state).items()})


def _parts(state: Any) -> list[tuple[str, Any]]:
    """What a state is made of, each part with its name."""
    if isinstance(state, tuple):
        return [(str(number), part) for number, part in enumerate(state)]
    if dataclasses.is_dataclass(state):
        return [(field.name, getattr(state, field.name)) for field in dataclasses.fields(state)]
    return []


def _path(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
