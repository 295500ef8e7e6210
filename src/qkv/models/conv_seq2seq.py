"""Convolutional sequence to sequence learning (Gehring, Auli, Grangier, Yarats and Dauphin 2017).

e_j = w_j + p_j,   g_i = w_i + p_i                              tokens and their places, of source and target
z   = V conv_m(... conv_1(U e))                                 the encoder: gated convolutions around each place
h   = conv_l(x^{l-1})                                           a decoder layer: the same over the places up to i
d_i = W h_i + b + g_i                                           what is looked for, with the last token in it
a_i = softmax_j(d_i . z_j),   c_i = sqrt(n) sum_j a_ij (z_j + e_j)     what is read of the n source tokens
x^l = (h + O c) + x^{l-1}                                       on to the next layer, which looks again
p(y_{i+1}) = softmax(E R x^L_i)

Every sum of two parts is multiplied by sqrt(1/2), and every layer begins with weights that keep the variance of what
passes through it (`qkv.nn.convolution`). All layers of the decoder send gradients into the encoder; so that it does not
learn so many times faster, they are divided by their number, but for the word embeddings that are read beside z.
"""

from dataclasses import dataclass

import torch
from torch import nn

from qkv.attention import SCORES, Attend, Keys, Learned, Padding, Sizes
from qkv.attention.precision import upcast_dtype
from qkv.config import require, require_known
from qkv.nn.convolution import ROOT_HALF, GatedConvolution, centred, scaled_gradient, steady
from qkv.nn.dropout import Dropout
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.nn.stack import Stack
from qkv.types import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Config:
    """The sizes and terms of the model; the data sets the sizes of the vocabularies."""

    source_size: int
    target_size: int
    dim: int = 256  # of the embeddings, and of what attention compares and reads
    hidden: int = 256  # of the convolutions
    encoder_layers: int = 4
    decoder_layers: int = 4
    kernel: int = 3  # how many places in a row a convolution reads
    dropout: float = 0.2
    score: str = "dot"
    tie: bool = True  # one matrix for source, target and output, where the vocabulary is shared
    max_length: int = 512  # the longest source or target it will be asked to handle

    def __post_init__(self) -> None:
        for name in ("source_size", "target_size", "dim", "hidden", "encoder_layers", "decoder_layers", "max_length"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must lie between 1 and 2^24")
        require(max(self.encoder_layers, self.decoder_layers) <= 1024, "more than 1,024 layers")
        require(1 <= self.kernel <= 1024, "kernel must lie between 1 and 1,024")
        require_known(self, score=SCORES)
        require(0 <= self.dropout < 1, "dropout must lie in [0, 1)")
        require(not self.tie or self.source_size == self.target_size, "tie needs one vocabulary for source and target")


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves for the decoder."""

    keys: tuple[Float[Tensor, "batch 1 source features"], ...]  # z, as the score of each decoder layer compares it
    values: Float[Tensor, "batch 1 source dim"]  # sqrt(n) (z + e)
    lengths: Int[Tensor, "batch"]  # n


@dataclass(frozen=True)
class State:
    """What the decoder carries from token to token: of its own past no more than its convolutions reach back."""

    memory: Memory
    past: tuple[Float[Tensor, "batch reach hidden"], ...]  # for each layer, its last kernel - 1 inputs
    position: int


class ConvSeq2Seq(EncoderDecoder[Memory, State]):
    """An encoder and a decoder of gated convolutions, with attention in every layer of the decoder."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        keep = 1 - config.dropout
        self.source_embed = Embedding(config.source_size, config.dim, config.max_length, config.dropout)
        self.encoder = Encoder(config)
        places = config.max_length + 1  # the begin token stands before the target
        self.target_embed = Embedding(config.target_size, config.dim, places, config.dropout)
        self.widen = steady(nn.Linear(config.dim, config.hidden), keep)
        self.decoder = Stack(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.narrow = nn.Sequential(steady(nn.Linear(config.hidden, config.dim)), Dropout(config.dropout))  # R
        self.readout = steady(nn.Linear(config.dim, config.target_size), keep)  # E
        if config.tie:
            self.target_embed.tokens.weight = self.source_embed.tokens.weight
            self.readout.weight = self.source_embed.tokens.weight

    def encode(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, "batch"] | None = None) -> Memory:
        batch, longest = source.shape
        lengths = source.new_full((batch,), longest) if source_lengths is None else source_lengths
        embedded = self.source_embed(source)  # e
        z = self.encoder(embedded, torch.arange(longest, device=source.device) < lengths[:, None])
        z = scaled_gradient(z, 1 / len(self.decoder))
        root = lengths.to(upcast_dtype(z.dtype)).sqrt()[:, None, None]  # of n, which short numbers cannot count up to
        values = (added(z, embedded) * root).to(z.dtype)
        keys = tuple(block.attend.keys(z[:, None]).tensor for block in self.decoder)
        return Memory(keys, values[:, None], lengths)

    def start(self, memory: Memory) -> State:
        nothing = memory.values.new_zeros(memory.values.shape[0], self.config.kernel - 1, self.config.hidden)
        return State(memory, (nothing,) * len(self.decoder), position=0)

    def advance(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        memory = state.memory
        embedded = self.target_embed(tokens, state.position)  # g
        x = self.widen(embedded)
        present = []
        for block, past, keys in zip(self.decoder, state.past, memory.keys, strict=True):
            inputs = torch.cat((past.to(x.dtype), x), dim=1)
            present.append(inputs[:, x.shape[1] :])
            x = block(inputs, embedded, Keys(keys), memory)
        logits = self.readout(self.narrow(x))
        return logits, State(memory, tuple(present), state.position + tokens.shape[1])


class Embedding(nn.Module):
    """dropout(w + p): a vector for each token and one for each place, both learned."""

    def __init__(self, size: int, dim: int, places: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size, dim)
        self.positions = Learned(places, dim)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.tokens.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)

    def forward(self, tokens: Int[Tensor, "batch length"], offset: int = 0) -> Float[Tensor, "batch length dim"]:
        return self.dropout(self.tokens(tokens) + self.positions(tokens.shape[1], offset))


class Encoder(nn.Module):
    """z = V conv_m(... conv_1(U e)); in and out of padding nothing flows."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.widen = steady(nn.Linear(config.dim, config.hidden), 1 - config.dropout)  # U
        self.convolutions = Stack(
            GatedConvolution(config.hidden, config.kernel, config.dropout) for _ in range(config.encoder_layers)
        )
        self.narrow = steady(nn.Linear(config.hidden, config.dim))  # V

    def forward(
        self, embedded: Float[Tensor, "batch source dim"], seen: Bool[Tensor, "batch source"]
    ) -> Float[Tensor, "batch source dim"]:
        x = self.widen(embedded)
        for convolve in self.convolutions:
            x = added(convolve(centred(x, convolve.kernel, seen)), x)
        return self.narrow(x)


class DecoderBlock(nn.Module):
    """x^l = (h + O c) + x^{l-1}: a convolution over the places up to each, then a look at the source."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.convolve = GatedConvolution(config.hidden, config.kernel, config.dropout)
        self.ask = steady(nn.Linear(config.hidden, config.dim))  # W and b
        sizes = Sizes(config.dim, config.dim, config.dim, config.max_length)
        self.attend = Attend(SCORES[config.score].from_sizes(sizes))
        self.tell = steady(nn.Linear(config.dim, config.hidden))  # O

    def forward(
        self,
        inputs: Float[Tensor, "batch inputs hidden"],  # the layer's inputs, with the kernel - 1 that came before
        embedded: Float[Tensor, "batch target dim"],  # g
        keys: Keys,
        memory: Memory,
    ) -> Float[Tensor, "batch target hidden"]:
        h = self.convolve(inputs)
        d = added(self.ask(h), embedded)
        read = self.attend(d[:, None], keys, memory.values, mask=Padding(memory.lengths))
        return added(added(h, self.tell(read.output[:, 0])), inputs[:, self.convolve.kernel - 1 :])


def added(
    x: Float[Tensor, "batch length features"], y: Float[Tensor, "batch length features"]
) -> Float[Tensor, "batch length features"]:
    """(x + y) sqrt(1/2), which has the variance of the one where the other has the same, in the precision of x."""
    return (x + y.to(x.dtype)) * ROOT_HALF
