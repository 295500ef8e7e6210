"""Long short-term memory-networks for machine reading (Cheng, Dong and Lapata 2016).

a_ti = v . tanh(W_h h_i + W_x x_t + W_~h ~h_{t-1}),  i < t       score of each past token (or any other `score`)
s_t  = softmax(a_t),   [~h_t ; ~c_t] = sum_i s_ti [h_i ; c_i]     attention over hidden states and memory cells
[i_t ; f_t ; o_t] = sigmoid(W [~h_t ; x_t]),   ^c_t = tanh(W [~h_t ; x_t])
c_t  = f_t * ~c_t + i_t * ^c_t,   h_t = o_t * tanh(c_t)           an LSTM step from the attended state
p(x_{t+1}) = softmax(O h_t)

~h, ~c and ^c are one symbol each, as in the paper. Each W is a separate matrix, and * is the elementwise product. The
gates, ^c, the query W_x x_t + W_~h ~h_{t-1} and O h_t have biases. The first token has no past token to attend to: its
~h and ~c are zero.

An LSTM compresses the past into one vector; this model keeps the state of every token (the hidden tape h and the memory
tape c) and attends to them. With a span of one token it is an LSTM. `qkv.watch` records each token's weights over the
tokens before it; once a text is longer than the span, over those still on the tape, oldest first.
"""

from dataclasses import dataclass
from typing import cast

import torch
from pydantic import model_validator
from torch import nn

from qkv.attention import Attend, Keys, Score, Sizes
from qkv.attention.score import HiddenLayer, uniform_parameter
from qkv.config import AlignTerm, Config, Count, NonNegativeInt, Rate, ScoreTerm, Size, Term
from qkv.nn.fast import Dropout
from qkv.nn.interfaces import LanguageModel
from qkv.nn.multi_head import BackendName, check_terms
from qkv.registry import register
from qkv.types import Float, Int, Tensor


class LSTMNConfig(Config):
    """Sizes and terms of the model; the default vocabulary is that of the Penn Treebank, as in the paper."""

    vocab_size: Size = 10_000  # number of tokens; set by the data
    embedding_dim: Size = 256  # size of the token embeddings
    hidden_dim: Size = 256  # size of h and c
    layers: Count = 1  # number of layers
    span: NonNegativeInt = 128  # number of past tokens that a token attends to; 0: unlimited
    score: ScoreTerm = Term("score", "additive")  # score of a token and a past token
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms
    dropout: Rate = 0.2  # dropout of the input and output of each layer

    @model_validator(mode="after")
    def check(self) -> "LSTMNConfig":
        check_terms(self.sizes, score=self.score, align=self.align)
        return self

    @property
    def sizes(self) -> Sizes:
        """Sizes of the attention over past tokens."""
        # An unlimited span gives max_keys = 0. Only score = "location" uses it, and raises then.
        return Sizes(query=self.hidden_dim, key=self.hidden_dim, hidden=self.hidden_dim, max_keys=self.span)


@dataclass(frozen=True)
class Tape:
    """The states of the last tokens of a layer, at most `span` of them.

    In truncated back-propagation through time, the next chunk attends to the tape, but gradients stop there.
    """

    keys: Float[Tensor, "batch 1 past key_dim"]  # W_h h_i: the keys as projected by the score
    values: Float[Tensor, "batch 1 past value_dim"]  # [h_i ; c_i]
    query_term: Float[Tensor, "batch hidden"]  # W_~h ~h_{t-1}, which is added to W_x x_t in the next query


@dataclass(frozen=True)
class State:
    """State between tokens."""

    tapes: tuple[Tape, ...]  # of each layer


@register("model", "lstmn")
class LSTMN(LanguageModel[State]):
    """Language model of stacked memory-network layers."""

    config_class = LSTMNConfig
    description = "LSTMN (Cheng et al. 2016): an LSTM language model that attends to its past states"

    def __init__(self, config: LSTMNConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.layers = nn.ModuleList(
            LSTMNLayer(config, config.hidden_dim if number else config.embedding_dim) for number in range(config.layers)
        )
        self.readout = nn.Linear(config.hidden_dim, config.vocab_size)  # O
        self.dropout = Dropout(config.dropout)

    def init_state(self, batch: int) -> State:
        """Return the state before the first token: empty tapes."""
        return State(tuple(cast(LSTMNLayer, layer).init_tape(batch) for layer in self.layers))

    def hidden_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length hidden"], State]:
        """Return the output of the last layer for each token, and the new state."""
        x = self.dropout(self.embed(tokens))
        tapes = []
        for layer, tape in zip(self.layers, state.tapes, strict=True):
            x, tape = layer(x, tape)
            x = self.dropout(x)
            tapes.append(tape)
        return x, State(tuple(tapes))


class LSTMNLayer(nn.Module):
    """The recurrence of the paper, for all tokens of one layer.

    The products with x_t are computed for all tokens before the loop. In the loop, ~h_t is multiplied once, by all of
    its matrices stacked.
    """

    def __init__(self, config: LSTMNConfig, input_dim: int) -> None:
        super().__init__()
        self.hidden = hidden = config.hidden_dim
        self.span = config.span
        self.parts = (hidden, 3 * hidden, hidden)  # of the query, the gates i, f and o, and ^c
        self.input_proj = nn.Linear(input_dim, sum(self.parts))  # W_x, and the W of the gates and of ^c, for x_t
        self.read_proj = nn.Linear(hidden, sum(self.parts), bias=False)  # W_~h, and the W of the gates and of ^c
        score, align = build_score(config), config.align.build(config.sizes)
        self.attend = Attend(score, align, backend=config.backend, heads=1)
        with torch.no_grad():
            self.input_proj.bias[2 * hidden : 3 * hidden] = 1.0  # forget gate (Jozefowicz et al. 2015)

    def forward(
        self, x: Float[Tensor, "batch length inputs"], tape: Tape
    ) -> tuple[Float[Tensor, "batch length hidden"], Tape]:
        queries, gates, contents = self.input_proj(x).split(self.parts, dim=-1)
        keys, values, query_term = (part.to(queries.dtype) for part in (tape.keys, tape.values, tape.query_term))
        outputs = []
        for query, gate, content in zip(queries.unbind(1), gates.unbind(1), contents.unbind(1), strict=True):
            # Keys: already projected by the score
            attended = self.attend((query + query_term)[:, None, None], Keys(keys), values).output[:, 0, 0]
            h_read, c_read = attended.chunk(2, dim=-1)  # ~h_t, ~c_t
            query_term, gate_read, content_read = self.read_proj(h_read).split(self.parts, dim=-1)
            i, f, o = (gate + gate_read).sigmoid().chunk(3, dim=-1)
            c = f * c_read + i * (content + content_read).tanh()
            h = o * c.tanh()
            outputs.append(h)
            new_key = self.attend.keys(h[:, None, None]).tensor  # W_h h_t, projected once for all later queries
            keys = self._append(keys, new_key)
            values = self._append(values, torch.cat((h, c), dim=-1)[:, None, None])
        output = torch.stack(outputs, dim=1) if outputs else x.new_zeros(*x.shape[:2], self.hidden)
        # Keep the precision of the incoming tape: it is the same with autocast and without.
        return output, Tape(*(part.to(tape.keys.dtype) for part in (keys, values, query_term)))

    def init_tape(self, batch: int) -> Tape:
        """Return the tape before the first token."""
        empty = self.read_proj.weight.new_zeros(batch, 1, 0, self.hidden)
        keys = self.attend.keys(empty).tensor.detach().to(empty.dtype)  # autocast would choose another dtype
        return Tape(keys, torch.cat((empty, empty), dim=-1), empty.new_zeros(batch, self.hidden))

    def _append(
        self, tape: Float[Tensor, "batch 1 past features"], new: Float[Tensor, "batch 1 1 features"]
    ) -> Float[Tensor, "batch 1 present features"]:
        """Append a token to the tape, and drop the oldest one beyond the span."""
        if tape.shape[2] == self.span > 0:
            # not a slice: its backward would allocate zeros for the whole tape
            _, tape = tape.split((1, self.span - 1), dim=2)
        return torch.cat((tape, new), dim=2)


def build_score(config: LSTMNConfig) -> Score:
    """Build the score of the query W_x x_t + W_~h ~h_{t-1} and the key h_i.

    An additive score would multiply the query by one more matrix, which W_x and W_~h make redundant.
    """
    if config.score == Term("score", "additive"):
        return ProjectedAdditive(config.hidden_dim)
    return config.score.build(config.sizes)


class ProjectedAdditive(HiddenLayer):
    """v . tanh(q + W_h h_i): the additive score for a query q that is already projected.

    The base class computes v . tanh(W q + U k), a feed-forward network with one hidden layer; here W q = q and U = W_h.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.key_weight = uniform_parameter((1, hidden, hidden), inputs=hidden)  # W_h
        self.vector = uniform_parameter((1, hidden), inputs=hidden)  # v

    def transform_query(
        self, query: Float[Tensor, "batch heads query hidden"]
    ) -> Float[Tensor, "batch heads query hidden"]:
        return query
