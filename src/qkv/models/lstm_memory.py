"""An LSTM with no memory but its cells (Hochreiter and Schmidhuber 1997): what a neural Turing machine is held against.

    h_t = LSTM(x_t, h_{t-1}),   y_t = W h_t + b                  in as many layers as one likes

Its memory is as large as its state, and its weights grow with the square of that.
"""

from dataclasses import dataclass

from torch import nn

from qkv.config import require
from qkv.errors import ShapeError
from qkv.nn.recurrent import Recurrent
from qkv.nn.transducer import Transducer
from qkv.types import Float, Tensor


@dataclass(frozen=True)
class Config:
    """The sizes of the network; the data set what goes in and comes out at each step."""

    inputs: int
    outputs: int
    hidden: int = 128
    layers: int = 1

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "hidden"):
            require(1 <= getattr(self, name) <= 2**16, f"{name} must lie between 1 and 2^16")
        require(1 <= self.layers <= 64, "layers must lie between 1 and 64")


@dataclass(frozen=True)
class State:
    """What the network carries from step to step."""

    hidden: Float[Tensor, "batch layers both"]  # h_t and c_t


class LSTMMemory(Transducer[State]):
    """The network."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.recurrent = Recurrent("lstm", config.inputs, config.hidden, config.layers)
        self.readout = nn.Linear(config.hidden, config.outputs)

    def start(self, batch: int) -> State:
        return State(self.readout.weight.new_zeros(batch, self.config.layers, self.recurrent.width))

    def read(
        self, x: Float[Tensor, "batch steps inputs"], state: State
    ) -> tuple[Float[Tensor, "batch steps outputs"], State]:
        if x.ndim != 3 or x.shape[-1] != self.config.inputs or x.shape[1] < 1:
            raise ShapeError(
                f"the network takes one or more steps of {self.config.inputs} numbers, but got {list(x.shape)} "
                "[batch, steps, inputs]"
            )
        said, hidden = self.recurrent(x, state.hidden)
        return self.readout(said), State(hidden)
