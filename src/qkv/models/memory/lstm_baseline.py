"""LSTM baseline for the neural Turing machine (Hochreiter and Schmidhuber 1997).

    h_t = LSTM(x_t, h_{t-1}),   y_t = W h_t + b

Its memory is the state [h_t ; c_t], and the number of recurrent weights grows with the square of the state's size. The
memory of a neural Turing machine can grow with almost no additional weights.
"""

from dataclasses import dataclass

from torch import nn

from qkv.config import Config, Count, Size
from qkv.nn.interfaces import SequenceModel
from qkv.nn.rnn import Recurrent
from qkv.registry import register
from qkv.types import Float, Tensor


class LSTMBaselineConfig(Config):
    """Sizes of the network; the default input and output are those of the copy task."""

    input_dim: Size = 10  # size of the input of a step; set by the data
    output_dim: Size = 8  # number of bits predicted per step; set by the data
    hidden_dim: Size = 128  # size of the hidden state of a layer
    layers: Count = 1  # number of LSTM layers


@dataclass(frozen=True)
class State:
    """State between steps."""

    hidden: Float[Tensor, "batch layers state_dim"]  # h_t and c_t


@register("model", "lstm_baseline")
class LSTMBaseline(SequenceModel[State]):
    """Stacked LSTM with a linear readout."""

    config_class = LSTMBaselineConfig
    description = "LSTM (Hochreiter and Schmidhuber 1997): the baseline of the neural Turing machine"

    def __init__(self, config: LSTMBaselineConfig) -> None:
        super().__init__()
        self.config = config
        self.recurrent = Recurrent("lstm", config.input_dim, config.hidden_dim, config.layers)
        self.readout = nn.Linear(config.hidden_dim, config.output_dim)  # W and b

    def init_state(self, batch: int) -> State:
        """Return the state before the first step (see `SequenceModel`)."""
        return State(self.readout.weight.new_zeros(batch, self.config.layers, self.recurrent.state_dim))

    def forward_from(
        self, x: Float[Tensor, "batch steps input_dim"], state: State
    ) -> tuple[Float[Tensor, "batch steps output_dim"], State]:
        """Return the logits of each step, and the new state."""
        self.check_input(x)
        outputs, hidden = self.recurrent(x, state.hidden)
        return self.readout(outputs), State(hidden)
