"""Recurrent encoder-decoders, with a fixed context vector or with attention over the source.

The encoder is uni- or bidirectional, h_i = [forward_i ; backward_i]; h_n is its final state.

attention = "none"        c = h_n   (Cho et al. 2014; Sutskever, Vinyals and Le 2014)
    s_0 = B h_n,   s_t = RNN([y_{t-1} ; c], s_{t-1}),   t_t = tanh(R [s_t ; c ; y_{t-1}])
    where `context` selects whether c is the initial state, an input of every step, or both

attention = "bahdanau"    (Bahdanau, Cho and Bengio 2015) the query is the previous state
    c_t = attend(s_{t-1}, h),   s_t = RNN([y_{t-1} ; c_t], s_{t-1}),   t_t = tanh(R [s_t ; c_t ; y_{t-1}])

attention = "luong"       (Luong, Pham and Manning 2015) the query is the new state; optionally with input feeding
    s_t = RNN([y_{t-1} ; t_{t-1}], s_{t-1}),   c_t = attend(s_t, h),   t_t = tanh(R [s_t ; c_t])

and p(y_t) = softmax(O t_t). t_t is Luong's attentional state.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import nn

from qkv.attention import SCORES, Sizes, build_score
from qkv.attention.hard import BASELINES, ESTIMATORS
from qkv.config import require, require_known, require_meaning
from qkv.nn.dropout import Dropout
from qkv.nn.embedding import ScaledEmbedding
from qkv.nn.interfaces import EncoderDecoder
from qkv.nn.rnn import CELLS, BiRNN, Bridge, Recurrent, StepLinear, gather_time, reverse_index
from qkv.nn.source_attention import ALIGNMENTS, EncodedSource, SourceAttention, build_alignment
from qkv.nn.stack import Stack
from qkv.registry import register
from qkv.types import Float, Int, Tensor

CHOICES = {  # allowed values of string options
    "cell": tuple(CELLS),
    "attention": ("none", "bahdanau", "luong"),
    "context": ("initial", "every_step", "both"),
    "bridge": ("none", "linear", "tanh"),
    "score": tuple(SCORES),
    "align": ALIGNMENTS,
    "estimator": ESTIMATORS,
    "baseline": ("none", *BASELINES),
}
APPLIES_WHEN = {  # options that only apply for certain values of another option
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
    """Sizes and terms of the model; the vocabulary sizes come from the data."""

    source_size: int
    target_size: int
    cell: str = "gru"  # gru, lstm, or rnn (tanh)
    layers: int = 1  # of the encoder and of the decoder, each
    embedding: int = 128
    hidden: int = 128  # of the decoder
    encoder_hidden: int | None = None  # both directions together; None: same as hidden
    bidirectional: bool = True
    reverse: bool = False  # reverse the source (Sutskever, Vinyals and Le 2014)
    bridge: str = "tanh"  # from the encoder's final states to the decoder's initial ones; none: copy
    attention: str = "bahdanau"
    context: str = "initial"  # use of h_n without attention: initial, every_step or both
    score: str = "additive"
    rank: int | None = None  # of the low_rank scores; None: same as hidden
    align: str = "soft"
    window: int = 10  # half-width D of local_m and local_p
    estimator: str = "straight-through"  # of hard attention: straight-through, gumbel or reinforce
    baseline: str = "moving-average"  # of reinforce: moving-average, learned or none
    entropy: float = 0.0  # of reinforce: weight of the entropy bonus
    discount: float = 1.0  # of reinforce: reward discount; below 1 trades bias for variance
    coverage: bool = False  # coverage term in the keys (See, Liu and Manning 2017)
    input_feeding: bool = True  # of luong: feed t_{t-1} to the next step
    tie: bool = False  # tie target embedding and output (Press and Wolf 2017), and source if sizes match
    scheduled_sampling: float = 0.0  # probability of feeding the model's own token (Bengio et al. 2015)
    dropout: float = 0.1  # of embeddings, between layers, of encoder states and of t_t
    read_dropout: float | None = None  # of encoder states; None: same as dropout
    max_length: int = 512  # maximum source and target length

    def __post_init__(self) -> None:
        for key in ("source_size", "target_size", "embedding", "hidden", "encoder_hidden", "rank", "max_length"):
            size = getattr(self, key)
            require(size is None or 1 <= size <= 2**24, f"{key} must be between 1 and 2^24")
        require(1 <= self.layers <= 1024, "layers must be between 1 and 1,024")
        for key in ("hidden", "encoder_hidden"):  # the bridge maps all layers to all layers
            require(self.layers * (getattr(self, key) or 0) <= 2**24, f"layers * {key} must be at most 2^24")
        require(1 <= self.window <= 2**24, "window must be between 1 and 2^24")
        for key in ("dropout", "read_dropout"):
            require(0 <= (getattr(self, key) or 0) < 1, f"{key} must be in [0, 1)")
        require(0 <= self.scheduled_sampling <= 1, "scheduled_sampling must be in [0, 1]")
        require(0 <= self.discount <= 1, "discount must be in [0, 1]")
        require(0 <= self.entropy < math.inf, "entropy must be finite and not negative")
        require_known(self, **CHOICES)
        require_meaning(self, APPLIES_WHEN)
        self._check_widths()
        require(
            not self.coverage or self.score != "location",
            "coverage cannot be combined with score = 'location', which ignores the keys: set score to additive",
        )
        require(
            not self.coverage or self.input_feeding,
            "coverage cannot be combined with input_feeding = false: each step depends on the previous one",
        )

    def _check_widths(self) -> None:
        """Raise if a width that must be even is odd, or if two widths that must match differ."""
        require(
            not self.bidirectional or self.encoder_width % 2 == 0,
            f"{'hidden' if self.encoder_hidden is None else 'encoder_hidden'} must be even for a bidirectional "
            "encoder; or set bidirectional to false",
        )
        same_width = self.hidden == self.encoder_width
        mismatch = f"hidden = {self.hidden} and encoder_hidden = {self.encoder_width} differ"
        require(
            same_width or self.bridge != "none",
            f"bridge = 'none' copies the encoder's states, but {mismatch}: set bridge to linear or tanh",
        )
        require(
            same_width or self.attention == "none" or self.score not in ("dot", "scaled_dot", "cosine"),
            f"score = {self.score!r} needs equal widths, but {mismatch}: set score to bilinear",
        )

    @property
    def encoder_width(self) -> int:
        """Size of h_i."""
        return self.hidden if self.encoder_hidden is None else self.encoder_hidden

    @property
    def bridge_kind(self) -> str:
        """Kind of bridge: zeros if h_n is only an input of every step."""
        return "zeros" if self.context == "every_step" else self.bridge

    @property
    def readout_dim(self) -> int:
        """Size of t_t, the input of the output layer: that of an embedding if tied."""
        return self.embedding if self.tie else self.hidden


@dataclass(frozen=True)
class Memory:
    """Output of the encoder."""

    last: Float[Tensor, "batch layers features"]  # h_n of each layer
    source: EncodedSource | None  # None without attention


@dataclass(frozen=True)
class State:
    """Decoder state between tokens."""

    memory: Memory
    step: Int[Tensor, ""]  # number of tokens so far
    hidden: Float[Tensor, "batch layers width"]  # s_t of each layer
    attentional_state: Float[Tensor, "batch readout_dim"] | None = None  # t_t, with input feeding
    coverage: Float[Tensor, "batch source"] | None = None  # sum of the weights so far, with coverage


@register("model", "rnn_seq2seq")
class RNNSeq2Seq(EncoderDecoder[Memory, State]):
    """Recurrent encoder-decoder."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = build_decoder(config)
        self.output = nn.Linear(config.readout_dim, config.target_size, bias=False)  # O
        self.dropout = Dropout(config.dropout)
        if config.tie:
            embedding = self.decoder.embed.weight
            self.output.weight = embedding
            if config.source_size == config.target_size:
                self.encoder.embed.weight = embedding

    def encode(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, "batch"] | None = None) -> Memory:
        values, last = self.encoder(source, source_lengths)
        return Memory(last, self.decoder.precompute(values, source_lengths))

    def decode(self, target: Int[Tensor, "batch target"], memory: Memory) -> Float[Tensor, "batch target vocabulary"]:
        if self.training and self.config.scheduled_sampling > 0:
            return self._decode_with_sampling(target, memory)
        return super().decode(target, memory)

    def init_state(self, memory: Memory) -> State:
        return self.decoder.init_state(memory)

    def advance(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        y = self.decoder.embed(tokens)
        attentional_states, state = self.decoder(self.dropout(y), state)
        return self.output(self.dropout(attentional_states)), replace(state, step=state.step + tokens.shape[1])

    def _decode_with_sampling(
        self, target: Int[Tensor, "batch target"], memory: Memory
    ) -> Float[Tensor, "batch target vocabulary"]:
        """`decode` with scheduled sampling: feed the model's own argmax token with some probability."""
        state = self.init_state(memory)
        steps: list[Tensor] = []
        for token in target.unbind(1):
            if steps:
                sampled = torch.rand_like(token, dtype=torch.float32) < self.config.scheduled_sampling
                token = torch.where(sampled, steps[-1].argmax(dim=-1), token)
            logits, state = self.step(token, state)
            steps.append(logits)
        return torch.stack(steps, dim=1)


class Encoder(nn.Module):
    """Returns h_i of the last layer, and h_n of each layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.reverse = config.reverse
        self.embed = (ScaledEmbedding if config.tie else nn.Embedding)(config.source_size, config.embedding)
        sizes = [config.embedding] + [config.encoder_width] * (config.layers - 1)
        directions = 2 if config.bidirectional else 1
        self.layers = Stack(BiRNN(config.cell, size, config.encoder_width, directions) for size in sizes)
        self.dropout = Dropout(config.dropout)
        last_dropout = config.dropout if config.read_dropout is None else config.read_dropout
        self.dropouts = Stack(Dropout(p) for p in [config.dropout] * (config.layers - 1) + [last_dropout])

    def forward(
        self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"] | None
    ) -> tuple[Float[Tensor, "batch source features"], Float[Tensor, "batch layers features"]]:
        batch, longest = source.shape
        if lengths is None:
            lengths = torch.full((batch,), longest, device=source.device)
        reverse = reverse_index(lengths, longest)
        x = self.dropout(self.embed(source.gather(1, reverse) if self.reverse else source))
        final_states = []
        for layer, dropout in zip(self.layers, self.dropouts, strict=True):
            x, last = layer(x, lengths, reverse)
            x = dropout(x)
            final_states.append(last)
        return gather_time(x, reverse) if self.reverse else x, torch.stack(final_states, dim=1)


DecoderOutput = tuple[Float[Tensor, "batch target readout_dim"], State]  # t_t after each token, and the final state


class RNNDecoder(nn.Module, ABC):
    """Base class: embeddings, recurrent layers with their initial state, and the readout layer that computes t_t."""

    def __init__(self, config: Config, context_dim: int, readout_input_dim: int) -> None:
        super().__init__()
        self.embed = (ScaledEmbedding if config.tie else nn.Embedding)(config.target_size, config.embedding)
        self.cells = Recurrent(
            config.cell, config.embedding + context_dim, config.hidden, config.layers, config.dropout
        )
        self.bridge = Bridge(config.bridge_kind, config.layers, config.encoder_width, self.cells.width)
        self.readout = nn.Linear(readout_input_dim, config.readout_dim)  # R

    def precompute(
        self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None
    ) -> EncodedSource | None:
        """Return the keys and values of the source, or None without attention."""
        return None

    def init_state(self, memory: Memory) -> State:
        """Return the state with s_0."""
        step = torch.zeros((), dtype=torch.long, device=memory.last.device)
        return State(memory, step, self.bridge(memory.last))

    @abstractmethod
    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> DecoderOutput:
        """Decode any number of tokens."""


class ContextDecoder(RNNDecoder):
    """s_t = RNN([y_{t-1} ; c], s_{t-1}), with all steps in one call."""

    def __init__(self, config: Config) -> None:
        context_dim = 0 if config.context == "initial" else config.encoder_width
        super().__init__(config, context_dim, config.hidden + config.embedding + context_dim)
        self.feeds_context = context_dim > 0

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> DecoderOutput:
        if self.feeds_context:
            y = torch.cat((y, state.memory.last[:, -1:].expand(-1, y.shape[1], -1)), dim=-1)  # [y_{t-1} ; c]
        s, hidden = self.cells(y, state.hidden)
        return self.readout(torch.cat((s, y), dim=-1)).tanh(), replace(state, hidden=hidden)


class AttentionDecoder(RNNDecoder):
    """Base class of decoders with attention over the source."""

    def __init__(self, config: Config, context_dim: int, readout_input_dim: int) -> None:
        super().__init__(config, context_dim, readout_input_dim)
        sizes = Sizes(config.hidden, config.encoder_width, config.rank or config.hidden, config.max_length)
        align = build_alignment(
            config.align, config.hidden, config.window,
            config.estimator, config.baseline, config.entropy, config.discount,
        )  # fmt: skip
        score = build_score(config.score, sizes)
        self.attention = SourceAttention(score, align, config.encoder_width, coverage=config.coverage)

    def precompute(
        self, values: Float[Tensor, "batch source features"], lengths: Int[Tensor, "batch"] | None
    ) -> EncodedSource:
        return self.attention.precompute(values, lengths)

    def init_state(self, memory: Memory) -> State:
        assert memory.source is not None
        return replace(super().init_state(memory), coverage=self.attention.init_coverage(memory.source))


class Bahdanau(AttentionDecoder):
    """c_t = attend(s_{t-1}, h),   s_t = RNN([y_{t-1} ; c_t], s_{t-1}),   t_t = tanh(R [s_t ; c_t ; y_{t-1}])."""

    def __init__(self, config: Config) -> None:
        width = config.encoder_width
        super().__init__(config, width, config.hidden + width + config.embedding)

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> DecoderOutput:
        cells, layers, coverage = self.cells.unroll(y), self.cells.split(state.hidden), state.coverage
        states, contexts = [], []
        for step in step_numbers(state.step, y.shape[1]):
            c, coverage = self.attention(layers[-1][0][:, None], state.memory.source, step, coverage)
            contexts.append(c.squeeze(1))  # c[:, 0] would need a copy in its backward
            s, layers = cells(layers, contexts[-1])
            states.append(s)
        readout_inputs = torch.cat((torch.stack(states, dim=1), torch.stack(contexts, dim=1), y), dim=-1)
        return self.readout(readout_inputs).tanh(), replace(state, hidden=self.cells.join(layers), coverage=coverage)


class Luong(AttentionDecoder):
    """s_t = RNN(y_{t-1}, s_{t-1}),   c_t = attend(s_t, h),   t_t = tanh(R [s_t ; c_t]), with all steps in one call."""

    def __init__(self, config: Config, context_dim: int = 0) -> None:
        super().__init__(config, context_dim, config.hidden + config.encoder_width)

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> DecoderOutput:
        s, hidden = self.cells(y, state.hidden)
        c, _ = self.attention(s, state.memory.source, state.step, None)
        return self.readout(torch.cat((s, c), dim=-1)).tanh(), replace(state, hidden=hidden)


class InputFeeding(Luong):
    """s_t = RNN([y_{t-1} ; t_{t-1}], s_{t-1}): input feeding of the previous attentional state."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.readout_dim)

    def init_state(self, memory: Memory) -> State:
        state = super().init_state(memory)
        return replace(state, attentional_state=state.hidden.new_zeros(memory.last.shape[0], self.readout.out_features))

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> DecoderOutput:
        cells, layers, coverage = self.cells.unroll(y), self.cells.split(state.hidden), state.coverage
        attentional_state = state.attentional_state
        readout, outputs = StepLinear.from_linear(self.readout, y.shape[1], y.shape[0]), []
        for step in step_numbers(state.step, y.shape[1]):
            s, layers = cells(layers, attentional_state)
            c, coverage = self.attention(s[:, None], state.memory.source, step, coverage)
            attentional_state = readout(torch.cat((s, c.squeeze(1)), dim=-1)).tanh()
            outputs.append(attentional_state)
        state = replace(state, hidden=self.cells.join(layers), coverage=coverage, attentional_state=attentional_state)
        return torch.stack(outputs, dim=1), state


def step_numbers(first: Int[Tensor, ""], steps: int) -> tuple[Int[Tensor, ""], ...]:
    """Return the indices of `steps` steps from `first` on."""
    return (first + torch.arange(steps, device=first.device)).unbind(0)


def build_decoder(config: Config) -> RNNDecoder:
    """Build the decoder for a config."""
    if config.attention == "luong":
        return InputFeeding(config) if config.input_feeding else Luong(config)
    return Bahdanau(config) if config.attention == "bahdanau" else ContextDecoder(config)
