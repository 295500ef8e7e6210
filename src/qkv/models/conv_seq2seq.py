"""Convolutional sequence to sequence learning (Gehring, Auli, Grangier, Yarats and Dauphin 2017).

e_j = w_j + p_j,   g_i = w_i + p_i                              token and position embeddings of source and target
z   = V conv_m(... conv_1(U e))                                 encoder: gated convolutions centred on each position
h   = conv_l(x^{l-1})                                           decoder layer: a causal gated convolution
d_i = W h_i + b + g_i                                           query, with the last token's embedding
a_i = softmax_j(d_i . z_j),   c_i = sqrt(n) sum_j a_ij (z_j + e_j)     attention over the n source tokens
x^l = (h + O c) + x^{l-1}                                       residual
p(y_{i+1}) = softmax(E R x^L_i)

Every sum of two terms is scaled by sqrt(1/2), and every layer is initialised to preserve variance
(`qkv.nn.conv`). The encoder receives gradients from all decoder layers, so they are divided by their number,
except for the gradients of the embeddings e in the attention values.
"""

from dataclasses import dataclass

import torch
from torch import nn

from qkv.attention import SCORES, Attend, Keys, Learned, Padding, Sizes, build_score
from qkv.attention.precision import upcast_dtype
from qkv.config import require, require_known
from qkv.nn.conv import ROOT_HALF, GatedConvolution, init_variance_preserving, pad_same, scale_gradient
from qkv.nn.dropout import Dropout
from qkv.nn.interfaces import EncoderDecoder
from qkv.nn.stack import Stack
from qkv.registry import register
from qkv.types import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Config:
    """Sizes and terms of the model; the vocabulary sizes come from the data."""

    source_size: int
    target_size: int
    dim: int = 256  # of embeddings, queries, keys and values
    hidden: int = 256  # of the convolutions
    encoder_layers: int = 4
    decoder_layers: int = 4
    kernel: int = 3  # kernel width
    dropout: float = 0.2
    score: str = "dot"
    tie: bool = True  # tie source, target and output embeddings; needs a shared vocabulary
    max_length: int = 512  # maximum source and target length

    def __post_init__(self) -> None:
        for name in ("source_size", "target_size", "dim", "hidden", "encoder_layers", "decoder_layers", "max_length"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must be between 1 and 2^24")
        require(
            max(self.encoder_layers, self.decoder_layers) <= 1024,
            "encoder_layers and decoder_layers must be at most 1,024",
        )
        require(1 <= self.kernel <= 1024, "kernel must be between 1 and 1,024")
        require_known(self, score=SCORES)
        require(0 <= self.dropout < 1, "dropout must be in [0, 1)")
        require(
            not self.tie or self.source_size == self.target_size, "tie needs a shared vocabulary for source and target"
        )


@dataclass(frozen=True)
class Memory:
    """Output of the encoder."""

    keys: tuple[Float[Tensor, "batch 1 source features"], ...]  # z, as projected by each decoder layer's score
    values: Float[Tensor, "batch 1 source dim"]  # sqrt(n) (z + e)
    lengths: Int[Tensor, "batch"]  # n


@dataclass(frozen=True)
class State:
    """Decoder state between tokens: only the inputs within reach of the convolutions."""

    memory: Memory
    past: tuple[Float[Tensor, "batch reach hidden"], ...]  # last kernel - 1 inputs of each layer
    position: int


@register("model", "conv_seq2seq")
class ConvSeq2Seq(EncoderDecoder[Memory, State]):
    """Encoder and decoder of gated convolutions, with attention in every decoder layer."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        keep = 1 - config.dropout
        self.source_embed = Embedding(config.source_size, config.dim, config.max_length, config.dropout)
        self.encoder = Encoder(config)
        positions = config.max_length + 1  # the target starts with a begin token
        self.target_embed = Embedding(config.target_size, config.dim, positions, config.dropout)
        self.up_proj = init_variance_preserving(nn.Linear(config.dim, config.hidden), keep)
        self.decoder = Stack(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.down_proj = nn.Sequential(
            init_variance_preserving(nn.Linear(config.hidden, config.dim)), Dropout(config.dropout)
        )  # R
        self.readout = init_variance_preserving(nn.Linear(config.dim, config.target_size), keep)  # E
        if config.tie:
            self.target_embed.tokens.weight = self.source_embed.tokens.weight
            self.readout.weight = self.source_embed.tokens.weight

    def encode(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, "batch"] | None = None) -> Memory:
        batch, longest = source.shape
        lengths = source.new_full((batch,), longest) if source_lengths is None else source_lengths
        embedded = self.source_embed(source)  # e
        z = self.encoder(embedded, torch.arange(longest, device=source.device) < lengths[:, None])
        z = scale_gradient(z, 1 / len(self.decoder))
        sqrt_n = lengths.to(upcast_dtype(z.dtype)).sqrt()[
            :, None, None
        ]  # sqrt(n) in float32: n may not be exact in lower precision
        values = (scaled_residual(z, embedded) * sqrt_n).to(z.dtype)
        keys = tuple(block.attend.keys(z[:, None]).tensor for block in self.decoder)
        return Memory(keys, values[:, None], lengths)

    def init_state(self, memory: Memory) -> State:
        zeros = memory.values.new_zeros(memory.values.shape[0], self.config.kernel - 1, self.config.hidden)
        return State(memory, (zeros,) * len(self.decoder), position=0)

    def advance(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        memory = state.memory
        embedded = self.target_embed(tokens, state.position)  # g
        x = self.up_proj(embedded)
        present = []
        for block, past, keys in zip(self.decoder, state.past, memory.keys, strict=True):
            inputs = torch.cat((past.to(x.dtype), x), dim=1)
            present.append(inputs[:, x.shape[1] :])
            x = block(inputs, embedded, Keys(keys), memory)
        logits = self.readout(self.down_proj(x))
        return logits, State(memory, tuple(present), state.position + tokens.shape[1])


class Embedding(nn.Module):
    """dropout(w + p): learned token and position embeddings."""

    def __init__(self, size: int, dim: int, positions: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size, dim)
        self.positions = Learned(positions, dim)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.tokens.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)

    def forward(self, tokens: Int[Tensor, "batch length"], offset: int = 0) -> Float[Tensor, "batch length dim"]:
        return self.dropout(self.tokens(tokens) + self.positions(tokens.shape[1], offset))


class Encoder(nn.Module):
    """z = V conv_m(... conv_1(U e)), with padding zeroed before each convolution."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up_proj = init_variance_preserving(nn.Linear(config.dim, config.hidden), 1 - config.dropout)  # U
        self.convolutions = Stack(
            GatedConvolution(config.hidden, config.kernel, config.dropout) for _ in range(config.encoder_layers)
        )
        self.down_proj = init_variance_preserving(nn.Linear(config.hidden, config.dim))  # V

    def forward(
        self, embedded: Float[Tensor, "batch source dim"], valid: Bool[Tensor, "batch source"]
    ) -> Float[Tensor, "batch source dim"]:
        x = self.up_proj(embedded)
        for convolve in self.convolutions:
            x = scaled_residual(convolve(pad_same(x, convolve.kernel, valid)), x)
        return self.down_proj(x)


class DecoderBlock(nn.Module):
    """x^l = (h + O c) + x^{l-1}: a causal convolution, then attention over the source."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.convolve = GatedConvolution(config.hidden, config.kernel, config.dropout)
        self.q_proj = init_variance_preserving(nn.Linear(config.hidden, config.dim))  # W and b
        sizes = Sizes(config.dim, config.dim, config.dim, config.max_length)
        self.attend = Attend(build_score(config.score, sizes))
        self.out_proj = init_variance_preserving(nn.Linear(config.dim, config.hidden))  # O

    def forward(
        self,
        inputs: Float[Tensor, "batch inputs hidden"],  # including the kernel - 1 preceding inputs
        embedded: Float[Tensor, "batch target dim"],  # g
        keys: Keys,
        memory: Memory,
    ) -> Float[Tensor, "batch target hidden"]:
        h = self.convolve(inputs)
        d = scaled_residual(self.q_proj(h), embedded)
        context = self.attend(d[:, None], keys, memory.values, mask=Padding(memory.lengths))
        return scaled_residual(
            scaled_residual(h, self.out_proj(context.output[:, 0])), inputs[:, self.convolve.kernel - 1 :]
        )


def scaled_residual(
    x: Float[Tensor, "batch length features"], y: Float[Tensor, "batch length features"]
) -> Float[Tensor, "batch length features"]:
    """(x + y) sqrt(1/2), which preserves variance, in the precision of x."""
    return (x + y.to(x.dtype)) * ROOT_HALF
