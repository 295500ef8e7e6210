"""One RNN over source, <TRANSLATE>, target: the simplest sequence-to-sequence model, a baseline.

    h_t = RNN(E[x_t], h_{t-1}),   x = (source_1 ... source_n, <TRANSLATE>, target_1 ... target_m)
    p(target_{t+1}) = softmax(O h_{n+1+t} + b)

The begin token of the target is <TRANSLATE>. Source and target share vocabulary, embedding and recurrent weights, so
one state has to encode the source, the target so far, and how much of the source has been translated.
"""

from dataclasses import dataclass

import torch
from pydantic import model_validator
from torch import nn

from qkv.config import Config, Count, Rate, Size, require
from qkv.nn.fast import Dropout
from qkv.nn.interfaces import EncoderDecoder
from qkv.nn.pooling import full_lengths
from qkv.nn.rnn import Cell, Recurrent
from qkv.registry import register
from qkv.types import Float, Int, Tensor


class SingleRNNConfig(Config):
    """Sizes of the model; the vocabulary sizes come from the data."""

    source_vocab_size: Size = 30000  # source tokens; the vocabulary must be shared
    target_vocab_size: Size = 30000  # target tokens
    cell: Cell = "gru"  # recurrent cell: gru, lstm, or rnn (tanh)
    layers: Count = 1  # number of recurrent layers
    embedding_dim: Size = 128  # size of the token embeddings
    hidden_dim: Size = 256  # size of the hidden state of a layer
    dropout: Rate = 0.1  # dropout of embeddings, between layers and of h_t before the readout
    max_length: Size = 512  # maximum source and target length

    @model_validator(mode="after")
    def _check(self) -> "SingleRNNConfig":
        require(
            self.source_vocab_size == self.target_vocab_size,
            "single_rnn needs a shared vocabulary: remove data.target_tokenizer from the recipe",
        )
        require(self.layers * self.hidden_dim <= 2**24, "layers * hidden_dim must be at most 2^24")
        return self


@dataclass(frozen=True)
class State:
    """State of the RNN after the tokens so far."""

    hidden: Float[Tensor, "batch layers state_dim"]  # h_t of each layer; [h_t ; c_t] of an LSTM


@register("model", "single_rnn")
class SingleRNN(EncoderDecoder[State, State]):
    """One recurrent network for source and target."""

    config_class = SingleRNNConfig
    description = "one RNN over source, <TRANSLATE>, target: the simplest sequence-to-sequence model"

    def __init__(self, config: SingleRNNConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.source_vocab_size, config.embedding_dim)  # E
        self.rnn = Recurrent(config.cell, config.embedding_dim, config.hidden_dim, config.layers, config.dropout)
        self.dropout = Dropout(config.dropout)
        self.readout = nn.Linear(config.hidden_dim, config.target_vocab_size)  # O and b
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def encode(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, "batch"] | None = None) -> State:
        """Return the state after the source; padding does not change it."""
        lengths = full_lengths(source) if source_lengths is None else source_lengths
        x = self.dropout(self.embed(source))
        state = x.new_zeros(len(x), self.config.layers, self.rnn.state_dim)
        for position in range(source.shape[1]):
            _, after = self.rnn(x[:, position : position + 1], state)
            state = torch.where((position < lengths)[:, None, None], after, state)
        return State(state)

    def init_state(self, memory: State) -> State:
        """Return the state before <TRANSLATE>."""
        return memory

    def forward_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """Return the logits after each token, and the new state."""
        hidden, after = self.rnn(self.dropout(self.embed(tokens)), state.hidden)
        return self.readout(self.dropout(hidden)), State(after)
