"""LSTM baseline for the neural Turing machine (Hochreiter and Schmidhuber 1997).

    h_t = LSTM(x_t, h_{t-1}),   y_t = W h_t + b

Its memory is the size of its state, and its weights grow with the square of that.
"""

from dataclasses import dataclass

from torch import nn

from qkv.config import require
from qkv.errors import ShapeError
from qkv.nn.interfaces import SequenceModel
from qkv.nn.rnn import Recurrent
from qkv.registry import register
from qkv.types import Float, Tensor


@dataclass(frozen=True)
class Config:
    """Sizes of the network; the input and output sizes come from the data."""

    inputs: int
    outputs: int
    hidden: int = 128
    layers: int = 1

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "hidden"):
            require(1 <= getattr(self, name) <= 2**16, f"{name} must be between 1 and 2^16")
        require(1 <= self.layers <= 64, "layers must be between 1 and 64")


@dataclass(frozen=True)
class State:
    """State between steps."""

    hidden: Float[Tensor, "batch layers both"]  # h_t and c_t


@register("model", "lstm_memory")
class LSTMMemory(SequenceModel[State]):
    """Stacked LSTM with a linear readout."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.recurrent = Recurrent("lstm", config.inputs, config.hidden, config.layers)
        self.readout = nn.Linear(config.hidden, config.outputs)

    def init_state(self, batch: int) -> State:
        return State(self.readout.weight.new_zeros(batch, self.config.layers, self.recurrent.width))

    def forward_from(
        self, x: Float[Tensor, "batch steps inputs"], state: State
    ) -> tuple[Float[Tensor, "batch steps outputs"], State]:
        if x.ndim != 3 or x.shape[-1] != self.config.inputs or x.shape[1] < 1:
            raise ShapeError(
                f"expected [batch, steps, {self.config.inputs}] with at least one step, got {list(x.shape)}"
            )
        outputs, hidden = self.recurrent(x, state.hidden)
        return self.readout(outputs), State(hidden)
