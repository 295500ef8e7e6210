"""Recurrent encoder-decoders: one thought vector, or attention to all of the source.

The encoder reads the source, one way or both, h_i = [ahead_i ; back_i]; h_n is what it knows at the end of it.

attention = "none"        c = h_n   (Cho et al. 2014; Sutskever, Vinyals and Le 2014)
    s_0 = B h_n,   s_t = RNN([y_{t-1} ; c], s_{t-1}),   t_t = tanh(R [s_t ; c ; y_{t-1}])
    where `context` says if c is the first state, is fed at every step, or both

attention = "bahdanau"    (Bahdanau, Cho and Bengio 2015) the query is the state before, and what it reads moves it on
    c_t = attend(s_{t-1}, h),   s_t = RNN([y_{t-1} ; c_t], s_{t-1}),   t_t = tanh(R [s_t ; c_t ; y_{t-1}])

attention = "luong"       (Luong, Pham and Manning 2015) the query is the new state; what is said may be fed to the next
    s_t = RNN([y_{t-1} ; t_{t-1}], s_{t-1}),   c_t = attend(s_t, h),   t_t = tanh(R [s_t ; c_t])

and then p(y_t) = softmax(O t_t).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import nn

from qkv.attention import SCORES, Sizes
from qkv.attention.hard import BASELINES, ESTIMATORS
from qkv.config import require, require_known, require_meaning
from qkv.nn.dropout import Dropout
from qkv.nn.embed import ScaledEmbedding
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.nn.reading import ALIGNMENTS, Reader, Source, alignment
from qkv.nn.recurrent import CELLS, BothWays, Bridge, Products, Recurrent, take, turning
from qkv.nn.stack import Stack
from qkv.types import Float, Int, Tensor

WORDS = {  # the keys that take one of some words
    "cell": tuple(CELLS),
    "attention": ("none", "bahdanau", "luong"),
    "context": ("initial", "every_step", "both"),
    "bridge": ("none", "linear", "tanh"),
    "score": tuple(SCORES),
    "align": ALIGNMENTS,
    "estimator": ESTIMATORS,
    "baseline": ("none", *BASELINES),
}
MEANT_FOR = {  # the keys that mean something only where another key has one of some values
    "context": ("attention", ("none",)),
    "score": ("attention", ("bahdanau", "luong")),
    "align": ("attention", ("bahdanau", "luong")),
    "coverage": ("attention", ("bahdanau", "luong")),
    "read_dropout": ("attention", ("bahdanau", "luong")),
    "input_feeding": ("attention", ("luong",)),
    "rank": ("score", ("low_rank", "low_rank_bilinear")),
    "window": ("align", ("local_m", "local_p")),
    "estimator": ("align", ("hard",)),
    "baseline": ("estimator", ("reinforce",)),
    "entropy": ("estimator", ("reinforce",)),
    "discount": ("estimator", ("reinforce",)),
}


@dataclass(frozen=True)
class Config:
    """The sizes and terms of the model; the data sets the sizes of the vocabularies."""

    source_size: int
    target_size: int
    cell: str = "gru"  # or lstm, or rnn: tanh alone
    layers: int = 1  # of the encoder, and of the decoder
    embedding: int = 128
    hidden: int = 128  # of the decoder
    encoder_hidden: int | None = None  # of the encoder, half of it in each direction if there are two; None: as hidden
    bidirectional: bool = True
    reverse: bool = False  # the source is read from its end (Sutskever, Vinyals and Le 2014)
    bridge: str = "tanh"  # from the encoder's last states to the decoder's first; none: they are the same
    attention: str = "bahdanau"
    context: str = "initial"  # where h_n goes if there is no attention: initial, every_step or both
    score: str = "additive"
    rank: int | None = None  # of the score low_rank; None: as hidden
    align: str = "soft"
    window: int = 10  # D of local_m and local_p, to each side
    estimator: str = "straight-through"  # of the gradient of hard attention: this, gumbel or reinforce
    baseline: str = "moving-average"  # of reinforce: this, learned or none
    entropy: float = 0.0  # of reinforce: the weight of a bonus for staying undecided
    discount: float = 1.0  # of reinforce: how much less each later step counts; 1 is exact, less varies less
    coverage: bool = False  # keys know how much was read of them (See, Liu and Manning 2017)
    input_feeding: bool = True  # of luong: t_{t-1} enters the recurrence
    tie: bool = False  # one matrix for target embedding and output (Press and Wolf 2017), and source if sizes are alike
    scheduled_sampling: float = 0.0  # how often training feeds the model's own token (Bengio et al. 2015)
    dropout: float = 0.1  # of embeddings, between layers, of the encoder's states and of what is said
    read_dropout: float | None = None  # of the encoder's states alone; None: as dropout. It blurs what dot products see
    max_length: int = 512  # the longest source or target it will be asked to handle

    def __post_init__(self) -> None:
        for key in ("source_size", "target_size", "embedding", "hidden", "encoder_hidden", "rank", "max_length"):
            size = getattr(self, key)
            require(size is None or 1 <= size <= 2**24, f"{key} must lie between 1 and 2^24")
        require(1 <= self.layers <= 1024, "layers must lie between 1 and 1,024")
        for key in ("hidden", "encoder_hidden"):  # the bridge is a matrix from all layers to all layers
            require(self.layers * (getattr(self, key) or 0) <= 2**24, f"layers * {key} must not be more than 2^24")
        require(1 <= self.window <= 2**24, "window must lie between 1 and 2^24")
        for key in ("dropout", "read_dropout"):
            require(0 <= (getattr(self, key) or 0) < 1, f"{key} must lie in [0, 1)")
        require(0 <= self.scheduled_sampling <= 1, "scheduled_sampling must lie in [0, 1]")
        require(0 <= self.discount <= 1, "discount must lie in [0, 1]")
        require(0 <= self.entropy < math.inf, "entropy must be 0 or more, and finite")
        require_known(self, **WORDS)
        require_meaning(self, MEANT_FOR)
        self._check_widths()
        require(
            not self.coverage or self.score != "location",
            "coverage marks the keys, at which score = 'location' does not look: set score to additive",
        )
        require(
            not self.coverage or self.input_feeding,
            "coverage makes each step wait for the one before, which input_feeding = false is there to avoid: "
            "leave one of them out",
        )

    def _check_widths(self) -> None:
        """Raise where a width cannot be halved, or where two that differ are asked to be the same."""
        require(
            not self.bidirectional or self.encoder_width % 2 == 0,
            f"{'hidden' if self.encoder_hidden is None else 'encoder_hidden'} must be even, one half for each "
            "direction of the encoder; or set bidirectional to false",
        )
        alike = self.hidden == self.encoder_width
        sizes = f"hidden = {self.hidden} and encoder_hidden = {self.encoder_width} differ"
        require(
            alike or self.bridge != "none",
            f"bridge = 'none' begins with the encoder's states, but {sizes}: set bridge to linear or tanh",
        )
        require(
            alike or self.attention == "none" or self.score not in ("dot", "scaled_dot", "cosine"),
            f"score = {self.score!r} multiplies feature by feature, but {sizes}: set score to bilinear",
        )

    @property
    def encoder_width(self) -> int:
        """The features of h_i."""
        return self.hidden if self.encoder_hidden is None else self.encoder_hidden

    @property
    def first_state(self) -> str:
        """How the decoder's first state comes from h_n; nothing does where h_n is fed at every step instead."""
        return "zeros" if self.context == "every_step" else self.bridge

    @property
    def said(self) -> int:
        """The features of t_t, which the vocabulary layer takes: if tied, those of an embedding."""
        return self.embedding if self.tie else self.hidden


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves for the decoder."""

    last: Float[Tensor, "batch layers features"]  # h_n of each layer
    source: Source | None  # None where there is no attention


@dataclass(frozen=True)
class State:
    """What the decoder carries from token to token."""

    memory: Memory
    step: Int[Tensor, ""]  # how many tokens it has taken
    hidden: Float[Tensor, "batch layers width"]  # s_t of each layer
    said: Float[Tensor, "batch said"] | None = None  # t_t, where it is fed to the next step
    covered: Float[Tensor, "batch source"] | None = None  # how much was read of each place, where coverage is asked for


class RNNSeq2Seq(EncoderDecoder[Memory, State]):
    """A recurrent encoder and a recurrent decoder."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = decoder(config)
        self.output = nn.Linear(config.said, config.target_size, bias=False)  # O
        self.dropout = Dropout(config.dropout)
        if config.tie:
            embedding = self.decoder.embed.weight
            self.output.weight = embedding
            if config.source_size == config.target_size:
                self.encoder.embed.weight = embedding

    def encode(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, "batch"] | None = None) -> Memory:
        values, last = self.encoder(source, source_lengths)
        return Memory(last, self.decoder.look(values, source_lengths))

    def decode(self, target: Int[Tensor, "batch target"], memory: Memory) -> Float[Tensor, "batch target vocabulary"]:
        if self.training and self.config.scheduled_sampling > 0:
            return self._decode_by_itself(target, memory)
        return super().decode(target, memory)

    def start(self, memory: Memory) -> State:
        return self.decoder.start(memory)

    def advance(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        y = self.decoder.embed(tokens)
        said, state = self.decoder(self.dropout(y), state)
        return self.output(self.dropout(said)), replace(state, step=state.step + tokens.shape[1])

    def _decode_by_itself(
        self, target: Int[Tensor, "batch target"], memory: Memory
    ) -> Float[Tensor, "batch target vocabulary"]:
        """As `decode`, but each token after the first is, with a probability, the one that seemed best to the model."""
        state = self.start(memory)
        steps: list[Tensor] = []
        for token in target.unbind(1):
            if steps:
                own = torch.rand_like(token, dtype=torch.float32) < self.config.scheduled_sampling
                token = torch.where(own, steps[-1].argmax(dim=-1), token)
            logits, state = self.step(token, state)
            steps.append(logits)
        return torch.stack(steps, dim=1)


class Encoder(nn.Module):
    """h_i of the last layer, and h_n of each layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.reverse = config.reverse
        self.embed = (ScaledEmbedding if config.tie else nn.Embedding)(config.source_size, config.embedding)
        sizes = [config.embedding] + [config.encoder_width] * (config.layers - 1)
        directions = 2 if config.bidirectional else 1
        self.layers = Stack(BothWays(config.cell, size, config.encoder_width, directions) for size in sizes)
        self.dropout = Dropout(config.dropout)
        read = config.dropout if config.read_dropout is None else config.read_dropout
        self.dropouts = Stack(Dropout(share) for share in [config.dropout] * (config.layers - 1) + [read])

    def forward(
        self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"] | None
    ) -> tuple[Float[Tensor, "batch source features"], Float[Tensor, "batch layers features"]]:
        batch, longest = source.shape
        if lengths is None:
            lengths = torch.full((batch,), longest, device=source.device)
        turned = turning(lengths, longest)
        x = self.dropout(self.embed(source.gather(1, turned) if self.reverse else source))
        every = []
        for layer, dropout in zip(self.layers, self.dropouts, strict=True):
            x, last = layer(x, lengths, turned)
            x = dropout(x)
            every.append(last)
        return take(x, turned) if self.reverse else x, torch.stack(every, dim=1)


Said = tuple[Float[Tensor, "batch target said"], State]  # t_t after each of some tokens, and the state after the last


class Decoder(nn.Module, ABC):
    """What all decoders have: embeddings, recurrent layers and their first state, and a layer that makes t_t."""

    def __init__(self, config: Config, fed: int, heard: int) -> None:
        super().__init__()
        self.embed = (ScaledEmbedding if config.tie else nn.Embedding)(config.target_size, config.embedding)
        self.cells = Recurrent(config.cell, config.embedding + fed, config.hidden, config.layers, config.dropout)
        self.bridge = Bridge(config.first_state, config.layers, config.encoder_width, self.cells.width)
        self.speak = nn.Linear(heard, config.said)  # R

    def look(
        self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None
    ) -> Source | None:
        """The encoder's states, ready to be attended to; None where nothing attends to them."""
        return None

    def start(self, memory: Memory) -> State:
        """s_0."""
        step = torch.zeros((), dtype=torch.long, device=memory.last.device)
        return State(memory, step, self.bridge(memory.last))

    @abstractmethod
    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> Said:
        """Take any number of tokens further."""


class Plain(Decoder):
    """s_t = RNN([y_{t-1} ; c], s_{t-1}): nothing has to be waited for, and all steps run as one call."""

    def __init__(self, config: Config) -> None:
        fed = 0 if config.context == "initial" else config.encoder_width
        super().__init__(config, fed, config.hidden + config.embedding + fed)
        self.fed = fed > 0

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> Said:
        if self.fed:
            y = torch.cat((y, state.memory.last[:, -1:].expand(-1, y.shape[1], -1)), dim=-1)  # [y_{t-1} ; c]
        s, hidden = self.cells(y, state.hidden)
        return self.speak(torch.cat((s, y), dim=-1)).tanh(), replace(state, hidden=hidden)


class Attending(Decoder):
    """A decoder that looks at the source."""

    def __init__(self, config: Config, fed: int, heard: int) -> None:
        super().__init__(config, fed, heard)
        sizes = Sizes(config.hidden, config.encoder_width, config.rank or config.hidden, config.max_length)
        align = alignment(
            config.align, config.hidden, config.window,
            config.estimator, config.baseline, config.entropy, config.discount,
        )  # fmt: skip
        score = SCORES[config.score].from_sizes(sizes)
        self.attention = Reader(score, align, config.encoder_width, coverage=config.coverage)

    def look(self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None) -> Source:
        return self.attention.look(values, lengths)

    def start(self, memory: Memory) -> State:
        assert memory.source is not None
        return replace(super().start(memory), covered=self.attention.uncovered(memory.source))


class Bahdanau(Attending):
    """c_t = attend(s_{t-1}, h),   s_t = RNN([y_{t-1} ; c_t], s_{t-1}),   t_t = tanh(R [s_t ; c_t ; y_{t-1}])."""

    def __init__(self, config: Config) -> None:
        width = config.encoder_width
        super().__init__(config, width, config.hidden + width + config.embedding)

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> Said:
        cells, layers, covered = self.cells.unroll(y), self.cells.split(state.hidden), state.covered
        states, contexts = [], []
        for time in times(state.step, y.shape[1]):
            c, covered = self.attention(layers[-1][0][:, None], state.memory.source, time, covered)
            contexts.append(c.squeeze(1))  # c[:, 0] would cost its backward pass a copy
            s, layers = cells(layers, contexts[-1])
            states.append(s)
        heard = torch.cat((torch.stack(states, dim=1), torch.stack(contexts, dim=1), y), dim=-1)
        return self.speak(heard).tanh(), replace(state, hidden=self.cells.join(layers), covered=covered)


class Luong(Attending):
    """s_t = RNN(y_{t-1}, s_{t-1}),   c_t = attend(s_t, h),   t_t = tanh(R [s_t ; c_t]): all steps run as one call."""

    def __init__(self, config: Config, fed: int = 0) -> None:
        super().__init__(config, fed, config.hidden + config.encoder_width)

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> Said:
        s, hidden = self.cells(y, state.hidden)
        c, _ = self.attention(s, state.memory.source, state.step, None)
        return self.speak(torch.cat((s, c), dim=-1)).tanh(), replace(state, hidden=hidden)


class InputFeeding(Luong):
    """s_t = RNN([y_{t-1} ; t_{t-1}], s_{t-1}): each step knows what the last one had decided on."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.said)

    def start(self, memory: Memory) -> State:
        state = super().start(memory)
        return replace(state, said=state.hidden.new_zeros(memory.last.shape[0], self.speak.out_features))

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> Said:
        cells, layers, covered, said = self.cells.unroll(y), self.cells.split(state.hidden), state.covered, state.said
        speak, every = Products.of(self.speak, y.shape[1], y.shape[0]), []
        for time in times(state.step, y.shape[1]):
            s, layers = cells(layers, said)
            c, covered = self.attention(s[:, None], state.memory.source, time, covered)
            said = speak(torch.cat((s, c.squeeze(1)), dim=-1)).tanh()
            every.append(said)
        state = replace(state, hidden=self.cells.join(layers), covered=covered, said=said)
        return torch.stack(every, dim=1), state


def times(first: Int[Tensor, ""], steps: int) -> tuple[Int[Tensor, ""], ...]:
    """The numbers of so many steps."""
    return (first + torch.arange(steps, device=first.device)).unbind(0)


def decoder(config: Config) -> Decoder:
    """The decoder that a config asks for."""
    if config.attention == "luong":
        return InputFeeding(config) if config.input_feeding else Luong(config)
    return Bahdanau(config) if config.attention == "bahdanau" else Plain(config)
