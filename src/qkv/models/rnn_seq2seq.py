"""Neural machine translation by jointly learning to align and translate (Bahdanau, Cho and Bengio 2015).

h_i  = [forward GRU(x)_i ; backward GRU(x)_i]                  the encoder reads both ways
e_ti = v . tanh(W s_{t-1} + U h_i)                             how well position i fits what comes next
a_t  = softmax(e_t),   c_t = sum_i a_ti h_i                    what to read
s_t  = GRU([y_{t-1} ; c_t], s_{t-1})                           the decoder moves on
p(y_t) = softmax(O tanh(R [s_t ; c_t ; y_{t-1}]))              and says a token
"""

from dataclasses import dataclass, replace

import torch
from torch import nn

from qkv.attention import SCORES, Attend, Dense, Extent, Keys, Padding, Sizes
from qkv.config import nearest, require
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.types import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Config:
    """The sizes and terms of the model; the data sets the sizes of the vocabularies."""

    source_size: int
    target_size: int
    embedding: int = 128
    hidden: int = 128  # of the decoder; the encoder has half of it in each direction
    score: str = "additive"
    dropout: float = 0.1
    max_length: int = 512  # the longest source or target it will be asked to handle

    def __post_init__(self) -> None:
        for name in ("source_size", "target_size", "embedding", "hidden", "max_length"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must lie between 1 and 2^24")
        require(self.score in SCORES, f"score {self.score!r} is not known{nearest(self.score, SCORES)}")
        require(self.hidden % 2 == 0, "hidden must be even, one half for each direction of the encoder")
        require(0 <= self.dropout < 1, "dropout must lie in [0, 1)")


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves for the decoder."""

    values: Float[Tensor, "batch 1 source hidden"]  # h_i
    keys: Float[Tensor, "batch 1 source features"]  # U h_i, or what else the score makes of them, once per sentence
    seen: Bool[Tensor, "batch 1 1 source"]  # false at padding
    last: Float[Tensor, "batch half"]  # the backward GRU's state once it has read the whole sentence


@dataclass(frozen=True)
class State:
    """What the decoder carries from token to token."""

    memory: Memory
    hidden: Float[Tensor, "batch hidden"]  # s_t


class RNNSeq2Seq(EncoderDecoder[Memory, State]):
    """A bidirectional GRU encoder and a GRU decoder that attends to it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def encode(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, "batch"] | None = None) -> Memory:
        values, last, seen = self.encoder(source, source_lengths)
        keys = self.decoder.attend.keys(values).tensor
        return Memory(values, keys, seen, last)

    def decode(self, target: Int[Tensor, "batch target"], memory: Memory) -> Float[Tensor, "batch target vocabulary"]:
        decoder = self.decoder
        hidden = decoder.first_hidden(memory)
        embedded = decoder.embed(target)
        steps = []
        for token in embedded.unbind(1):
            hidden, context = decoder.advance(token, hidden, memory)
            steps.append(torch.cat((hidden, context, token), dim=-1))
        return decoder.readout(torch.stack(steps, dim=1))

    def start(self, memory: Memory) -> State:
        return State(memory, self.decoder.first_hidden(memory))

    def step(self, token: Int[Tensor, "batch"], state: State) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        embedded = self.decoder.embed(token)
        hidden, context = self.decoder.advance(embedded, state.hidden, state.memory)
        logits = self.decoder.readout(torch.cat((hidden, context, embedded), dim=-1))
        return logits, replace(state, hidden=hidden)


class Encoder(nn.Module):
    """h_i = [forward ; backward].

    The backward GRU reads each sentence turned round, so that for both directions padding comes last, where it can do
    no harm: no packing, and one matrix product for the inputs of all steps.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Embedding(config.source_size, config.embedding), nn.Dropout(config.dropout))
        self.ahead = nn.GRU(config.embedding, config.hidden // 2, batch_first=True)
        self.back = nn.GRU(config.embedding, config.hidden // 2, batch_first=True)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"] | None
    ) -> tuple[
        Float[Tensor, "batch 1 source features"], Float[Tensor, "batch hidden"], Bool[Tensor, "batch 1 1 source"]
    ]:
        batch, longest = source.shape
        if lengths is None:
            lengths = source.new_full((batch,), longest)
        seen = Padding(lengths).materialise(Extent(batch, 1, 1, longest, source.device))
        turned = turning(lengths, longest)
        embedded = self.embed(source)
        ahead, _ = self.ahead(embedded)
        back, _ = self.back(take(embedded, turned))
        back = take(back, turned)
        return self.dropout(torch.cat((ahead, back), dim=-1)).unsqueeze(1), back[:, 0], seen


def turning(lengths: Int[Tensor, "batch"], longest: int) -> Int[Tensor, "batch source"]:
    """The order that turns each sentence round and leaves its padding where it is."""
    place = torch.arange(longest, device=lengths.device)
    return torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)


def take(x: Float[Tensor, "batch source dim"], order: Int[Tensor, "batch source"]) -> Float[Tensor, "batch source dim"]:
    """The positions of each sentence in the given order."""
    return x.gather(1, order[:, :, None].expand(-1, -1, x.shape[-1]))


class Decoder(nn.Module):
    """s_t = GRU([y_{t-1} ; c_t], s_{t-1})."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Embedding(config.target_size, config.embedding), nn.Dropout(config.dropout))
        self.bridge = nn.Sequential(nn.Linear(config.hidden // 2, config.hidden), nn.Tanh())  # s_0 = tanh(B last)
        self.attend = Attend(
            SCORES[config.score].sized(Sizes(config.hidden, config.hidden, config.hidden, config.max_length))
        )
        self.cell = nn.GRUCell(config.embedding + config.hidden, config.hidden)
        self.readout = nn.Sequential(
            nn.Linear(2 * config.hidden + config.embedding, config.hidden),
            nn.Tanh(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, config.target_size),
        )

    def first_hidden(self, memory: Memory) -> Float[Tensor, "batch hidden"]:
        """s_0, made of the backward encoder's last state."""
        return self.bridge(memory.last)

    def advance(
        self, token: Float[Tensor, "batch embedding"], hidden: Float[Tensor, "batch hidden"], memory: Memory
    ) -> tuple[Float[Tensor, "batch hidden"], Float[Tensor, "batch features"]]:
        """s_t and c_t, from y_{t-1} and s_{t-1}."""
        read = self.attend(hidden[:, None, None], Keys(memory.keys), memory.values, mask=Dense(memory.seen))
        context = read.output[:, 0, 0]  # c_t
        return self.cell(torch.cat((token, context), dim=-1), hidden), context
