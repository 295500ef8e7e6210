"""Long short-term memory-networks for machine reading (Cheng, Dong and Lapata 2016).

a_ti = v . tanh(W_h h_i + W_x x_t + W_~h ~h_{t-1}),  i < t       how well each token of the past fits this one
s_t  = softmax(a_t),   [~h_t ; ~c_t] = sum_i s_ti [h_i ; c_i]     its hidden state and its memory, read by one look
[i_t ; f_t ; o_t] = sigmoid(W [~h_t ; x_t]),   ^c_t = tanh(W [~h_t ; x_t])
c_t  = f_t * ~c_t + i_t * ^c_t,   h_t = o_t * tanh(c_t)           an LSTM, with what was read in place of its last state
p(x_{t+1}) = softmax(O h_t)

An LSTM squeezes the past into one vector; this one keeps the state of every token (the hidden tape h and the memory
tape c) and looks for what it needs. With a span of one token it is an LSTM. `watch` shows, for each token, its weights
over the tokens before it: once a text is longer than the span, over those that are still on the tape, the oldest first.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from qkv.attention import Attend, Keys
from qkv.attention.score import HiddenLayer
from qkv.config import require
from qkv.nn.dropout import Dropout
from qkv.nn.language_model import LanguageModel
from qkv.nn.stack import Stack
from qkv.types import Float, Int, Tensor


@dataclass(frozen=True)
class Config:
    """The sizes of the model; the data set the size of the vocabulary."""

    vocabulary_size: int
    embedding: int = 256
    hidden: int = 256
    layers: int = 1
    span: int = 128  # how many tokens back the tapes reach; 0: all the way
    dropout: float = 0.2  # of what enters and leaves each layer

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "embedding", "hidden", "layers"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must lie between 1 and 2^24")
        require(self.layers <= 1024, "more than 1,024 layers")
        require(self.span >= 0, "span must not be negative (0 for a memory without end)")
        require(0 <= self.dropout < 1, "dropout must lie in [0, 1)")


@dataclass(frozen=True)
class Tape:
    """What a layer remembers of the tokens so far, at most `span` of them: it grows to that, and no further.

    Where back-propagation is cut off, the tape is kept as it is: later tokens go on reading what earlier parts of the
    text have left on it, and only its making is learned no more.
    """

    keys: Float[Tensor, "batch 1 past features"]  # W_h h_i, computed once for each token
    values: Float[Tensor, "batch 1 past both"]  # [h_i ; c_i]
    asked: Float[Tensor, "batch features"]  # W_~h ~h_{t-1}: what was read last has a part in the next question


@dataclass(frozen=True)
class State:
    """What the model carries from token to token."""

    tapes: tuple[Tape, ...]  # one for each layer


class LSTMN(LanguageModel[State]):
    """A language model of one or more memory-network layers, each reading what the one below it says."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary_size, config.embedding)
        self.layers = Stack(
            MemoryLayer(config.hidden if number else config.embedding, config.hidden, config.span)
            for number in range(config.layers)
        )
        self.readout = nn.Linear(config.hidden, config.vocabulary_size)
        self.dropout = Dropout(config.dropout)

    def start(self, batch: int) -> State:
        return State(tuple(layer.blank(batch) for layer in self.layers))

    def read(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        x = self.dropout(self.embed(tokens))
        tapes = []
        for layer, tape in zip(self.layers, state.tapes, strict=True):
            x, tape = layer(x, tape)
            x = self.dropout(x)
            tapes.append(tape)
        return self.readout(x), State(tuple(tapes))


class MemoryLayer(nn.Module):
    """The recurrence of the paper, for all tokens of one layer.

    What does not depend on the tape is computed for all tokens at once, before the loop; inside of it each vector is
    multiplied once, by all the matrices that wait for it.
    """

    def __init__(self, inputs: int, hidden: int, span: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.span = span
        self.parts = (hidden, 3 * hidden, hidden)  # of the question, of the gates i, f and o, and of ^c
        self.of_input = nn.Linear(inputs, sum(self.parts))  # W_x and the gates' W, for x_t
        self.of_read = nn.Linear(hidden, sum(self.parts), bias=False)  # W_~h and the gates' W, for ~h_t
        self.attend = Attend(ProjectedAdditive(hidden))
        with torch.no_grad():
            self.of_input.bias[2 * hidden : 3 * hidden] = 1.0  # f: to forget has to be learned (Jozefowicz et al. 2015)

    def forward(
        self, x: Float[Tensor, "batch length inputs"], tape: Tape
    ) -> tuple[Float[Tensor, "batch length hidden"], Tape]:
        questions, gates, contents = self.of_input(x).split(self.parts, dim=-1)
        keys, values, asked = (part.to(questions.dtype) for part in (tape.keys, tape.values, tape.asked))
        said = []
        for question, gate, content in zip(questions.unbind(1), gates.unbind(1), contents.unbind(1), strict=True):
            read = self.attend((question + asked)[:, None, None], Keys(keys), values).output[:, 0, 0]
            h_read, c_read = read.chunk(2, dim=-1)  # ~h_t, ~c_t
            asked, gate_read, content_read = self.of_read(h_read).split(self.parts, dim=-1)
            i, f, o = (gate + gate_read).sigmoid().chunk(3, dim=-1)
            c = f * c_read + i * (content + content_read).tanh()
            h = o * c.tanh()
            said.append(h)
            keys = self._last(keys, self.attend.keys(h[:, None, None]).tensor)
            values = self._last(values, torch.cat((h, c), dim=-1)[:, None, None])
        outputs = torch.stack(said, dim=1) if said else x.new_zeros(*x.shape[:2], self.hidden)
        # In the precision of what came in: a tape that is carried on looks the same with autocast and without.
        return outputs, Tape(*(part.to(tape.keys.dtype) for part in (keys, values, asked)))

    def blank(self, batch: int) -> Tape:
        """The tape before the first token."""
        nothing = self.of_read.weight.new_zeros(batch, 1, 0, self.hidden)
        return Tape(nothing, torch.cat((nothing, nothing), dim=-1), self.of_read.weight.new_zeros(batch, self.hidden))

    def _last(
        self, tape: Float[Tensor, "batch 1 past features"], further: Float[Tensor, "batch 1 1 features"]
    ) -> Float[Tensor, "batch 1 present features"]:
        """The tape with one more token, and without the oldest where it would be longer than the span."""
        if tape.shape[2] == self.span > 0:
            _, tape = tape.split((1, self.span - 1), dim=2)  # a slice would fill as much memory with zeros going back
        return torch.cat((tape, further), dim=2)


class ProjectedAdditive(HiddenLayer):
    """v . tanh(q + W_h h_i): the additive score of a question q whose parts are multiplied by their weights already."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(hidden)
        self.key_weight = nn.Parameter(torch.empty(1, hidden, hidden).uniform_(-bound, bound))  # W_h
        self.vector = nn.Parameter(torch.empty(1, hidden).uniform_(-bound, bound))  # v

    def transform_query(
        self, query: Float[Tensor, "batch heads query hidden"]
    ) -> Float[Tensor, "batch heads query hidden"]:
        return query
