"""Recurrent language models.

RNN   h_t = tanh(W x_t + U h_{t-1} + b)                                            (Elman 1990; Mikolov et al. 2010)
LSTM  c_t = f_t * c_{t-1} + i_t * g_t,   h_t = o_t * tanh(c_t)                     (Hochreiter and Schmidhuber 1997)
      i_t, f_t, o_t = sigmoid(W x_t + U h_{t-1} + b),   g_t = tanh(W x_t + U h_{t-1} + b)
GRU   h_t = (1 - z_t) * n_t + z_t * h_{t-1},   r_t, z_t = sigmoid(W x_t + U h_{t-1} + b)        (Cho et al. 2014)
      n_t = tanh(W x_t + b + r_t * (U h_{t-1} + b'))
p(x_{t+1}) = softmax(O h_t + b)

Each gate has its own W, U and b, and * is the elementwise product. Layers are stacked. There are two kinds of dropout:
of the input and output of each layer, with the same mask at every step of a sequence (Gal and Ghahramani 2016), and of
the entries of the recurrent matrix U (Merity et al. 2018).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import nn
from torch.nn import functional as F

from qkv.config import Config, Count, Rate, Size, require
from qkv.nn.interfaces import LanguageModel
from qkv.registry import register
from qkv.types import Float, Int, Tensor

# Each cell as a module with its weights, and as a function that runs a layer over all steps with explicit weights.
CELLS: dict[str, tuple[type[nn.RNN] | type[nn.GRU] | type[nn.LSTM], Callable[..., Any]]] = {
    "rnn": (nn.RNN, torch.rnn_tanh),
    "gru": (nn.GRU, torch.gru),
    "lstm": (nn.LSTM, torch.lstm),
}


class RNNLMConfig(Config):
    """Sizes of the model; the default vocabulary is that of the Penn Treebank (Mikolov et al. 2010)."""

    vocab_size: Size = 10_000  # number of tokens; set by the data
    cell: Literal["rnn", "lstm", "gru"] = "lstm"  # recurrent cell
    layers: Count = 2  # number of recurrent layers
    embedding_dim: Size = 256  # size of the token embeddings
    hidden_dim: Size = 512  # size of the hidden state of a layer
    dropout: Rate = 0.3  # dropout of the input and output of each layer, one mask per sequence
    weight_dropout: Rate = 0.0  # dropout of the recurrent matrices
    tie_embeddings: bool = False  # tie embedding and readout O (Press and Wolf 2017)
    learned_initial_state: bool = False  # learn the initial state instead of zeros

    @model_validator(mode="after")
    def check_sizes(self) -> "RNNLMConfig":
        if self.tie_embeddings:
            require(
                self.embedding_dim == self.hidden_dim,
                f"tie_embeddings needs embedding_dim = hidden_dim, not {self.embedding_dim} and {self.hidden_dim}",
            )
        return self


@dataclass(frozen=True)
class State:
    """State between tokens, or between chunks of a text."""

    hidden: Float[Tensor, "batch layers hidden"]  # h_t
    cell: Float[Tensor, "batch layers hidden"] | None  # c_t of an LSTM


@register("model", "rnn_lm")
class RNNLM(LanguageModel[State]):
    """Embedding, stacked recurrent layers and readout."""

    config_class = RNNLMConfig
    description = "RNN language model (Mikolov et al. 2010): with RNN, LSTM or GRU cells"

    initial_state: Float[Tensor, "parts 1 layers hidden"]  # h_0, and c_0 of an LSTM

    def __init__(self, config: RNNLMConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.layers = nn.ModuleList(
            RecurrentLayer(config, config.hidden_dim if number else config.embedding_dim)
            for number in range(config.layers)
        )
        self.readout = nn.Linear(config.hidden_dim, config.vocab_size)  # O and b
        self.dropout = SequenceDropout(config.dropout)
        initial = torch.zeros(2 if config.cell == "lstm" else 1, 1, config.layers, config.hidden_dim)
        if config.learned_initial_state:
            self.initial_state = nn.Parameter(initial)
        else:
            self.register_buffer("initial_state", initial, persistent=False)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        if config.tie_embeddings:
            self.readout.weight = self.embed.weight

    def init_state(self, batch: int) -> State:
        """Return the state before the first token (see `LanguageModel`)."""
        hidden, *cell = self.initial_state.expand(-1, batch, -1, -1)
        return State(hidden, cell[0] if cell else None)

    def hidden_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length hidden"], State]:
        """Return the output of the last layer for each token, and the new state."""
        x = self.dropout(self.embed(tokens))
        hidden, cell = [], []
        for number, layer in enumerate(self.layers):
            x, last = layer(x, tuple(part[:, number] for part in (state.hidden, state.cell) if part is not None))
            x = self.dropout(x)
            hidden.append(last[0])
            cell += last[1:]
        return x, State(torch.stack(hidden, dim=1), torch.stack(cell, dim=1) if cell else None)


class RecurrentLayer(nn.Module):
    """One layer over all steps, in one call of PyTorch's recurrence (cuDNN on a GPU)."""

    def __init__(self, config: RNNLMConfig, input_dim: int) -> None:
        super().__init__()
        module, self.rnn_function = CELLS[config.cell]
        self.weights = module(input_dim, config.hidden_dim, batch_first=True)
        self.weight_dropout = config.weight_dropout
        if config.cell == "lstm":
            _, _, bias, _ = self.weights.parameters()
            nn.init.ones_(bias[config.hidden_dim : 2 * config.hidden_dim])  # forget gate (Jozefowicz et al. 2015)

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
