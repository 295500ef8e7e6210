"""Neural Turing machines (Graves, Wayne and Danihelka 2014): a controller with a memory that it can address.

    h_t = controller([x_t ; r_{t-1}], h_{t-1})
    w_t = address(h_t, M_{t-1}, w_{t-1}),   M_t(i) = M_{t-1}(i) (1 - w_t(i) e_t) + w_t(i) a_t           the write heads
    v_t = address(h_t, M_t, v_{t-1}),       r_t = sum_i v_t(i) M_t(i)                                    the read heads
    y_t = W [h_t ; r_t] + b

and `address` finds a place by content, keeps the last one, or moves on from there (`qkv.attention.addressing`). What an
LSTM keeps in its cells a machine can keep at a place, so that it can go on for longer than it was ever trained to. Only
the weights of the heads know how many locations there are, from which they start. `watch` sees both kinds of heads as
"writer" and "reader": a row for each step, over the locations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from qkv.config import require, require_known
from qkv.errors import ShapeError
from qkv.nn.memory import BLANK, ReadHeads, WriteHeads, places_of
from qkv.nn.recurrent import Layer, Products, Recurrent
from qkv.nn.transducer import Transducer
from qkv.types import Float, Tensor

CONTROLLERS = ("feedforward", "lstm")
ADDRESSINGS = ("content", "content_and_location")

Step = Callable[[Sequence[Layer], Tensor], tuple[Tensor, list[Layer]]]


@dataclass(frozen=True)
class Config:
    """The sizes of the machine; the data set what goes in and comes out at each step."""

    inputs: int
    outputs: int
    controller: str = "feedforward"  # which remembers nothing but by the memory; or "lstm"
    hidden: int = 100
    locations: int = 128
    width: int = 20  # of a location
    read_heads: int = 1
    write_heads: int = 1
    addressing: str = "content_and_location"
    reach: int = 1  # how many locations a head can move in one step, in each direction

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "hidden", "width"):
            require(1 <= getattr(self, name) <= 2**16, f"{name} must lie between 1 and 2^16")
        # A head is told where it was by a one for each place: as many numbers as locations, at each of them.
        require(1 <= self.locations <= 2**12, "locations must lie between 1 and 4,096")
        for name in ("read_heads", "write_heads"):
            require(1 <= getattr(self, name) <= 64, f"{name} must lie between 1 and 64")
        require_known(self, controller=CONTROLLERS, addressing=ADDRESSINGS)
        require(
            self.reach >= 0 and 2 * self.reach + 1 <= self.locations,
            f"reach must lie between 0 and half of the {self.locations} locations, not {self.reach}",
        )


@dataclass(frozen=True)
class State:
    """What the machine carries from step to step."""

    controller: tuple[Layer, ...]  # h and c of an LSTM; nothing of a controller that remembers nothing
    memory: Float[Tensor, "batch locations width"]  # M_t
    read: Float[Tensor, "batch heads width"]  # r_t
    written_at: Float[Tensor, "batch write_heads locations"]  # w_t
    read_at: Float[Tensor, "batch heads locations"]  # v_t


class NTM(Transducer[State]):
    """The machine."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        reads = config.read_heads * config.width
        kind = LSTM if config.controller == "lstm" else Reactive
        self.controller = kind(config.inputs + reads, config.hidden)
        reach = config.reach if config.addressing == "content_and_location" else None
        self.writer = WriteHeads(config.write_heads, config.locations, config.width, reach)
        self.reader = ReadHeads(config.read_heads, config.locations, config.width, reach)
        self.tell = nn.Linear(config.hidden, self.writer.size + self.reader.size)  # what h_t says to the heads
        self.readout = nn.Linear(config.hidden + reads, config.outputs)

    def start(self, batch: int) -> State:
        config, like = self.config, self.readout.weight
        return State(
            self.controller.start(batch),
            like.new_full((batch, config.locations, config.width), BLANK),
            like.new_zeros(batch, config.read_heads, config.width),
            self.writer.begin(batch, like),
            self.reader.begin(batch, like),
        )

    def read(
        self, x: Float[Tensor, "batch steps inputs"], state: State
    ) -> tuple[Float[Tensor, "batch steps outputs"], State]:
        self._check(x)
        # In the weights' own precision: a place that is known to three digits is lost after some steps.
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.readout.weight.dtype)
            control = self.controller.unroll(x)
            tell = Products.of(self.tell, x.shape[1], x.shape[0])
            carried: Sequence[Layer] = state.controller
            memory, read, written_at, read_at = state.memory, state.read, state.written_at, state.read_at
            places, said = places_of(memory), []
            for _ in range(x.shape[1]):
                h, carried = control(carried, read.flatten(1))
                to_writers, to_readers = tell(h).split((self.writer.size, self.reader.size), dim=-1)
                memory, written_at = self.writer(to_writers, memory, written_at, places)
                read, read_at = self.reader(to_readers, memory, read_at, places)
                said.append(torch.cat((h, read.flatten(1)), dim=-1))
            logits = self.readout(torch.stack(said, dim=1))
        return logits, State(tuple(carried), memory, read, written_at, read_at)

    def _check(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.config.inputs or x.shape[1] < 1:
            raise ShapeError(
                f"the machine takes one or more steps of {self.config.inputs} numbers, but got {list(x.shape)} "
                "[batch, steps, inputs]"
            )


class LSTM(nn.Module):
    """h_t = LSTM([x_t ; r_{t-1}], h_{t-1}): a controller with some memory of its own."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.recurrent = Recurrent("lstm", inputs, hidden)

    def start(self, batch: int) -> tuple[Layer, ...]:
        nothing = next(self.parameters()).new_zeros(batch, self.recurrent.hidden)
        return ((nothing, nothing),)

    def unroll(self, x: Float[Tensor, "batch steps inputs"]) -> Step:
        return self.recurrent.unroll(x)


class Reactive(nn.Module):
    """h_t = tanh(W [x_t ; r_{t-1}] + b): a controller that knows nothing but what it sees and what was read for it."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, hidden)

    def start(self, batch: int) -> tuple[Layer, ...]:
        return ()

    def unroll(self, x: Float[Tensor, "batch steps inputs"]) -> Step:
        of_x, of_read = self.layer.weight.split((x.shape[-1], self.layer.in_features - x.shape[-1]), dim=1)
        products = Products(F.linear(x.transpose(0, 1), of_x, self.layer.bias), of_read)

        def step(carried: Sequence[Layer], read: Tensor) -> tuple[Tensor, list[Layer]]:
            return products(read).tanh(), []

        return step
