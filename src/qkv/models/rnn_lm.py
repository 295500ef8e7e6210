"""Recurrent language models.

RNN   h_t = tanh(W x_t + U h_{t-1} + b)                                            (Elman 1990; Mikolov et al. 2010)
LSTM  c_t = f_t * c_{t-1} + i_t * g_t,   h_t = o_t * tanh(c_t)                     (Hochreiter and Schmidhuber 1997)
      i, f, o = sigmoid(W x_t + U h_{t-1} + b),   g = tanh(W x_t + U h_{t-1} + b)
GRU   h_t = (1 - z_t) * n_t + z_t * h_{t-1},   r, z = sigmoid(W x_t + U h_{t-1} + b)            (Cho et al. 2014)
      n_t = tanh(W x_t + b + r_t * (U h_{t-1} + b'))
p(x_{t+1}) = softmax(O h_t)

Layers are stacked. Two kinds of dropout suit recurrences: one mask for all steps of a sequence, on the input and output
of the layers (Gal and Ghahramani 2016), and a mask on the recurrent matrix U (Merity et al. 2018).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from qkv.config import require
from qkv.nn.interfaces import LanguageModel
from qkv.nn.rnn import CELLS
from qkv.nn.stack import Stack
from qkv.registry import register
from qkv.types import Float, Int, Tensor

# Functions that run a layer over all steps with explicit weights (cuDNN on a GPU).
RNN_FUNCTIONS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "rnn": torch.rnn_tanh,
    "gru": torch.gru,
    "lstm": torch.lstm,
}


@dataclass(frozen=True)
class Config:
    """Sizes and terms of the model; the vocabulary size comes from the data."""

    vocabulary_size: int
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    layers: int = 2
    embedding: int = 256
    hidden: int = 512
    dropout: float = 0.3  # of the input and output of each layer, one mask per sequence
    weight_dropout: float = 0.0  # of the recurrent matrices
    tie: bool = False  # tie embedding and output (Press and Wolf 2017)
    learned_start: bool = False  # learn the initial state instead of zeros

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "layers", "embedding", "hidden"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must be between 1 and 2^24")
        require(self.layers <= 1024, "layers must be at most 1,024")
        for name in ("dropout", "weight_dropout"):
            require(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1)")
        require(
            not self.tie or self.embedding == self.hidden,
            f"tie needs embedding = hidden, not {self.embedding} and {self.hidden}",
        )


@dataclass(frozen=True)
class State:
    """State between tokens, or between chunks of a text."""

    hidden: Float[Tensor, "batch layers hidden"]  # h_t
    cell: Float[Tensor, "batch layers hidden"] | None  # c_t of an LSTM


@register("model", "rnn_lm")
class RNNLM(LanguageModel[State]):
    """Embedding, stacked recurrent layers and output layer."""

    config_class = Config

    initial_state: Tensor  # of shape [parts, 1, layers, hidden]

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary_size, config.embedding)
        self.layers = Stack(
            RecurrentLayer(config.cell, config.hidden if number else config.embedding, config.hidden,
                           config.weight_dropout)
            for number in range(config.layers)
        )  # fmt: skip
        self.readout = nn.Linear(config.hidden, config.vocabulary_size)
        self.dropout = SequenceDropout(config.dropout)
        parts = 2 if config.cell == "lstm" else 1  # h, and c of an LSTM
        initial = torch.zeros(parts, 1, config.layers, config.hidden)
        if config.learned_start:
            self.initial_state = nn.Parameter(initial)
        else:
            self.register_buffer("initial_state", initial, persistent=False)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        if config.tie:
            self.readout.weight = self.embed.weight

    def init_state(self, batch: int) -> State:
        hidden, *cell = self.initial_state.expand(-1, batch, -1, -1)
        return State(hidden, cell[0] if cell else None)

    def forward_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        x = self.dropout(self.embed(tokens))
        hidden, cell = [], []
        for number, layer in enumerate(self.layers):
            x, last = layer(x, tuple(part[:, number] for part in (state.hidden, state.cell) if part is not None))
            x = self.dropout(x)
            hidden.append(last[0])
            cell += last[1:]
        return self.readout(x), State(torch.stack(hidden, dim=1), torch.stack(cell, dim=1) if cell else None)


class RecurrentLayer(nn.Module):
    """One layer over all steps, in one call of PyTorch's recurrence."""

    def __init__(self, cell: str, inputs: int, hidden: int, weight_dropout: float) -> None:
        super().__init__()
        self.rnn_function = RNN_FUNCTIONS[cell]
        self.weights = CELLS[cell](inputs, hidden, batch_first=True)
        self.weight_dropout = weight_dropout
        if cell == "lstm":
            _, _, bias, _ = self.weights.parameters()
            nn.init.ones_(bias[hidden : 2 * hidden])  # forget gate (Jozefowicz et al. 2015)

    def forward(
        self, x: Float[Tensor, "batch length inputs"], state: tuple[Float[Tensor, "batch hidden"], ...]
    ) -> tuple[Float[Tensor, "batch length hidden"], tuple[Float[Tensor, "batch hidden"], ...]]:
        initial = [part[None].contiguous() for part in state]
        w, u, *biases = self.weights.parameters()
        weights = [w, F.dropout(u, self.weight_dropout, self.training), *biases]
        # Disable autocast: PyTorch would run cuDNN in float16 whatever the autocast dtype, and the gradient of a mean
        # over thousands of tokens underflows there.
        with torch.autocast(x.device.type, enabled=False):
            output, *last = self.rnn_function(
                x.to(w.dtype), initial if len(initial) == 2 else initial[0], weights,
                has_biases=True, num_layers=1, dropout=0.0, train=self.training, bidirectional=False, batch_first=True,
            )  # fmt: skip
        return output, tuple(part[0] for part in last)


class SequenceDropout(nn.Module):
    """Variational dropout: the same mask at every step of a sequence."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch length features"]:
        if not self.training or self.p == 0.0:
            return x
        return x * F.dropout(torch.ones_like(x[:, :1]), self.p)
