"""Neural Turing machines (Graves, Wayne and Danihelka 2014): a controller with a memory that it can address.

    h_t = controller([x_t ; r_{t-1}], h_{t-1})
    w_t = address(h_t, M_{t-1}, w_{t-1}),   M_t(i) = M_{t-1}(i) (1 - w_t(i) e_t) + w_t(i) a_t           the write heads
    v_t = address(h_t, M_t, v_{t-1}),       r_t = sum_i v_t(i) M_t(i)                                    the read heads
    y_t = W [h_t ; r_t] + b

`address` selects locations by content, keeps the previous weights, or shifts them (`qkv.attention.addressing`). Unlike
an LSTM's cells, the memory lets a machine generalise to longer sequences than in training. Only the heads' initial
weights depend on the number of locations. `watch` records the heads as "write_heads" and "read_heads": a row for each
step, over the locations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from qkv.config import require, require_known
from qkv.errors import ShapeError
from qkv.nn.fast import StepLinear
from qkv.nn.memory import BLANK, ReadHeads, WriteHeads, one_hot_locations
from qkv.nn.rnn import Layer, Recurrent
from qkv.nn.transducer import Transducer
from qkv.registry import register
from qkv.types import Float, Tensor

CONTROLLERS = ("feedforward", "lstm")
ADDRESSINGS = ("content", "content_and_location")

Step = Callable[[Sequence[Layer], Tensor], tuple[Tensor, list[Layer]]]


@dataclass(frozen=True)
class Config:
    """Sizes of the machine; the input and output sizes come from the data."""

    inputs: int
    outputs: int
    controller: str = "feedforward"  # stateless; or "lstm"
    hidden: int = 100
    locations: int = 128
    width: int = 20  # of a location
    read_heads: int = 1
    write_heads: int = 1
    addressing: str = "content_and_location"
    reach: int = 1  # maximum shift of a head per step, in each direction

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "hidden", "width"):
            require(1 <= getattr(self, name) <= 2**16, f"{name} must be between 1 and 2^16")
        # One-hot locations are appended to the memory: locations^2 numbers per row.
        require(1 <= self.locations <= 2**12, "locations must be between 1 and 4,096")
        for name in ("read_heads", "write_heads"):
            require(1 <= getattr(self, name) <= 64, f"{name} must be between 1 and 64")
        require_known(self, controller=CONTROLLERS, addressing=ADDRESSINGS)
        require(
            self.reach >= 0 and 2 * self.reach + 1 <= self.locations,
            f"reach must be between 0 and half of the {self.locations} locations, not {self.reach}",
        )


@dataclass(frozen=True)
class State:
    """State between steps."""

    controller: tuple[Layer, ...]  # h and c of an LSTM; empty for a feed-forward controller
    memory: Float[Tensor, "batch locations width"]  # M_t
    read: Float[Tensor, "batch heads width"]  # r_t
    written_at: Float[Tensor, "batch write_heads locations"]  # w_t
    read_at: Float[Tensor, "batch heads locations"]  # v_t


@register("model", "ntm")
class NTM(Transducer[State]):
    """Controller with read and write heads on a memory."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        reads = config.read_heads * config.width
        controller = LSTM if config.controller == "lstm" else FeedForward
        self.controller = controller(config.inputs + reads, config.hidden)
        max_shift = config.reach if config.addressing == "content_and_location" else None
        self.write_heads = WriteHeads(config.write_heads, config.locations, config.width, max_shift)
        self.read_heads = ReadHeads(config.read_heads, config.locations, config.width, max_shift)
        self.head_params = nn.Linear(
            config.hidden, self.write_heads.size + self.read_heads.size
        )  # emits the heads' parameters
        self.readout = nn.Linear(config.hidden + reads, config.outputs)

    def init_state(self, batch: int) -> State:
        config, like = self.config, self.readout.weight
        return State(
            self.controller.init_state(batch),
            like.new_full((batch, config.locations, config.width), BLANK),
            like.new_zeros(batch, config.read_heads, config.width),
            self.write_heads.initial_weights(batch, like),
            self.read_heads.initial_weights(batch, like),
        )

    def forward_from(
        self, x: Float[Tensor, "batch steps inputs"], state: State
    ) -> tuple[Float[Tensor, "batch steps outputs"], State]:
        self._check(x)
        # No autocast: rounding errors in the weights add up over the steps.
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.readout.weight.dtype)
            control = self.controller.unroll(x)
            head_params = StepLinear.from_linear(self.head_params, x.shape[1], x.shape[0])
            controller_state: Sequence[Layer] = state.controller
            memory, read, written_at, read_at = state.memory, state.read, state.written_at, state.read_at
            one_hot, outputs = one_hot_locations(memory), []
            for _ in range(x.shape[1]):
                h, controller_state = control(controller_state, read.flatten(1))
                write_params, read_params = head_params(h).split((self.write_heads.size, self.read_heads.size), dim=-1)
                memory, written_at = self.write_heads(write_params, memory, written_at, one_hot)
                read, read_at = self.read_heads(read_params, memory, read_at, one_hot)
                outputs.append(torch.cat((h, read.flatten(1)), dim=-1))
            logits = self.readout(torch.stack(outputs, dim=1))
        return logits, State(tuple(controller_state), memory, read, written_at, read_at)

    def _check(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.config.inputs or x.shape[1] < 1:
            raise ShapeError(
                f"expected [batch, steps, {self.config.inputs}] with at least one step, got {list(x.shape)}"
            )


class LSTM(nn.Module):
    """h_t = LSTM([x_t ; r_{t-1}], h_{t-1})."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.recurrent = Recurrent("lstm", inputs, hidden)

    def init_state(self, batch: int) -> tuple[Layer, ...]:
        zeros = next(self.parameters()).new_zeros(batch, self.recurrent.hidden)
        return ((zeros, zeros),)

    def unroll(self, x: Float[Tensor, "batch steps inputs"]) -> Step:
        return self.recurrent.unroll(x)


class FeedForward(nn.Module):
    """h_t = tanh(W [x_t ; r_{t-1}] + b): a stateless controller."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, hidden)

    def init_state(self, batch: int) -> tuple[Layer, ...]:
        return ()

    def unroll(self, x: Float[Tensor, "batch steps inputs"]) -> Step:
        w_x, w_read = self.layer.weight.split((x.shape[-1], self.layer.in_features - x.shape[-1]), dim=1)
        linear = StepLinear(F.linear(x.transpose(0, 1), w_x, self.layer.bias), w_read)

        def step(state: Sequence[Layer], read: Tensor) -> tuple[Tensor, list[Layer]]:
            return linear(read).tanh(), []

        return step
