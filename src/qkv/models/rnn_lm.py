"""Recurrent language models: what was read so far is one vector, and each token changes it.

RNN   h_t = tanh(W x_t + U h_{t-1} + b)                                            (Elman 1990; Mikolov et al. 2010)
LSTM  c_t = f_t * c_{t-1} + i_t * g_t,   h_t = o_t * tanh(c_t)                     (Hochreiter and Schmidhuber 1997)
      i, f, o = sigmoid(W x_t + U h_{t-1} + b),   g = tanh(W x_t + U h_{t-1} + b)
GRU   h_t = (1 - z_t) * n_t + z_t * h_{t-1},   r, z = sigmoid(W x_t + U h_{t-1} + b)            (Cho et al. 2014)
      n_t = tanh(W x_t + b + r_t * (U h_{t-1} + b'))
p(x_{t+1}) = softmax(O h_t)

Layers are stacked, each reading the states of the one below. Two kinds of dropout fit recurrences: one mask for all
steps of a sequence, on what enters and leaves the layers (Gal and Ghahramani 2016), and a mask on the recurrent matrix
U, which is the same for all steps because the matrix is (Merity et al. 2018).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from qkv.config import require
from qkv.nn.language_model import LanguageModel
from qkv.nn.recurrent import CELLS
from qkv.nn.stack import Stack
from qkv.types import Float, Int, Tensor

# The function that runs a layer over all steps (cuDNN's, on a GPU), whatever was done to its weights before.
RUNS: dict[str, Callable[..., tuple[Tensor, ...]]] = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}


@dataclass(frozen=True)
class Config:
    """The sizes and terms of the model; the data set the size of the vocabulary."""

    vocabulary_size: int
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    layers: int = 2
    embedding: int = 256
    hidden: int = 512
    dropout: float = 0.3  # of what enters and leaves each layer, one mask a sequence
    weight_dropout: float = 0.0  # of the recurrent matrices
    tie: bool = False  # one matrix for the embedding and the output (Press and Wolf 2017)
    learned_start: bool = False  # whether the state before the first token is learned, or zero

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "layers", "embedding", "hidden"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must lie between 1 and 2^24")
        require(self.layers <= 1024, "layers must be 1,024 at most")
        for name in ("dropout", "weight_dropout"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1)")
        require(
            not self.tie or self.embedding == self.hidden,
            f"tie needs embedding and hidden to be alike, not {self.embedding} and {self.hidden}",
        )


@dataclass(frozen=True)
class State:
    """What the model carries from token to token, and from one part of a text to the next."""

    hidden: Float[Tensor, "batch layers hidden"]  # h_t
    cell: Float[Tensor, "batch layers hidden"] | None  # c_t, of an LSTM


class RNNLM(LanguageModel[State]):
    """An embedding, a stack of recurrent layers, and the output layer."""

    first: Tensor  # the state before the first token

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
        parts = 2 if config.cell == "lstm" else 1  # of a state: h, and of an LSTM also c
        first = torch.zeros(parts, 1, config.layers, config.hidden)
        if config.learned_start:
            self.first = nn.Parameter(first)
        else:
            self.register_buffer("first", first, persistent=False)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        if config.tie:
            self.readout.weight = self.embed.weight

    def start(self, batch: int) -> State:
        hidden, *cell = self.first.expand(-1, batch, -1, -1)
        return State(hidden, cell[0] if cell else None)

    def read(
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
    """One layer over all steps, in one call of the library's recurrence; a step is a sequence of one."""

    def __init__(self, cell: str, inputs: int, hidden: int, weight_dropout: float) -> None:
        super().__init__()
        self.run = RUNS[cell]
        self.weights = CELLS[cell](inputs, hidden, batch_first=True)
        self.weight_dropout = weight_dropout
        if cell == "lstm":
            _, _, bias, _ = self.weights.parameters()
            nn.init.ones_(bias[hidden : 2 * hidden])  # f: to forget has to be learned (Jozefowicz et al. 2015)

    def forward(
        self, x: Float[Tensor, "batch length inputs"], state: tuple[Float[Tensor, "batch hidden"], ...]
    ) -> tuple[Float[Tensor, "batch length hidden"], tuple[Float[Tensor, "batch hidden"], ...]]:
        first = [part[None].contiguous() for part in state]
        w, u, *biases = self.weights.parameters()
        weights = [w, F.dropout(u, self.weight_dropout, self.training), *biases]
        # In the weights' own precision: autocast would have cuDNN work in float16, whatever it was told, and the
        # gradient of a mean over thousands of tokens is too small for that.
        with torch.autocast(x.device.type, enabled=False):
            output, *last = self.run(
                x.to(w.dtype), first if len(first) == 2 else first[0], weights,
                has_biases=True, num_layers=1, dropout=0.0, train=self.training, bidirectional=False, batch_first=True,
            )  # fmt: skip
        return output, tuple(part[0] for part in last)


class SequenceDropout(nn.Module):
    """Variational dropout: the features that are left out are the same ones at every step of a sequence."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch length features"]:
        if not self.training or self.p == 0.0:
            return x
        return x * F.dropout(torch.ones_like(x[:, :1]), self.p)
