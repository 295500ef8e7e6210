"""Convolutional sequence to sequence learning (Gehring, Auli, Grangier, Yarats and Dauphin 2017).

    conv(u)_i = A_i * sigmoid(B_i),   [A_i ; B_i] = K [u_{i-r} ; ... ; u_{i+s}],   r + s + 1 = `kernel`

    e_j = w_j + p_j,   g_i = w_i + p_i                      token and position embeddings of source and target
    u^0 = U e,   u^l = conv(u^{l-1}) (+) u^{l-1},   z = V u^M     encoder of M layers; conv is centered: s = r or r + 1
    x^0 = T g                                               decoder of L layers
    h   = conv(x^{l-1})                                     decoder layer l; conv is causal: s = 0
    d_i = W h_i (+) g_i                                     query; g_i is the embedding of target token i
    a_i = softmax_j(d_i . z_j)                              attention over the n source tokens
    c_i = sqrt(n) sum_j a_ij (z_j (+) e_j)
    x^l = (h (+) O c) (+) x^{l-1}                           residual
    p(token i + 1) = softmax(E R x^L_i)

* is the elementwise product, and u (+) v is (u + v) sqrt(1/2). Every layer is initialized to preserve the variance of
its input (`qkv.nn.conv`). All matrices have biases, and each layer has its own. All decoder layers attend
to z, so the gradient of z is divided by L (that of e is not). z and e come from the convolutional encoder of the paper
or from another one of `qkv.nn.encoders`.
"""

from dataclasses import dataclass
from typing import cast

import torch
from pydantic import model_validator
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from qkv.attention import Attend, Keys, Padding, Sizes
from qkv.attention.precision import upcast_dtype
from qkv.config import AlignTerm, Config, Count, EncoderTerm, Rate, ScoreTerm, Size, Term, require
from qkv.nn.conv import (
    GatedConvolution,
    PositionalEmbedding,
    init_variance_preserving,
    scale_gradient,
    scaled_residual,
)
from qkv.nn.encoders.source_encoders import EncoderSizes
from qkv.nn.fast import Dropout
from qkv.nn.interfaces import EncoderDecoder, ParallelDecoder, SourceEncoder
from qkv.nn.multi_head import BackendName, check_terms
from qkv.nn.pooling import full_lengths
from qkv.registry import register
from qkv.types import Float, Int, Tensor


class ConvSeq2SeqConfig(Config):
    """Sizes and terms of the model; the vocabulary sizes come from the data."""

    source_vocab_size: Size = 40000  # source tokens
    target_vocab_size: Size = 40000  # target tokens
    dim: Size = 256  # size of embeddings, queries, keys and values
    hidden_dim: Size = 256  # channels of the convolutions: size of u, x and h
    layers: Count = 4  # layers of the decoder, and of the encoder unless encoder.layers is set
    kernel: Count = 3  # kernel width
    encoder: EncoderTerm = Term("encoder", "conv")  # source encoder: conv, rnn or transformer
    dropout: Rate = 0.2  # dropout of the embeddings, and of the inputs of convolutions and readout
    score: ScoreTerm = Term("score", "dot")  # score of queries and encoder states
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    tie_embeddings: bool = True  # tie source and target embedding and readout E; needs a shared vocabulary
    weight_norm: bool = False  # weight normalization of all layers but embeddings and readout, as in the paper
    max_length: Size = 512  # maximum source and target length
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms

    @model_validator(mode="after")
    def _check(self) -> "ConvSeq2SeqConfig":
        if self.tie_embeddings:
            shared = self.source_vocab_size == self.target_vocab_size
            require(shared, "tie_embeddings needs a shared vocabulary for source and target")
        require(not self.encoder.cls.reads_speech, f"encoder {self.encoder.name!r} is for speech: use rnn_seq2seq")
        encoder_dim = self.encoder.options.get("dim") or self.dim
        require(encoder_dim == self.dim, f"encoder.dim {encoder_dim} must equal dim {self.dim}")
        self.encoder.cls.check_options(self.dim, self.encoder.options)
        check_terms(self.attention_sizes, cross_attention=True, align=self.align, score=self.score)
        return self

    @property
    def attention_sizes(self) -> Sizes:
        return Sizes(query=self.dim, key=self.dim, hidden=self.dim, max_keys=self.max_length)


@dataclass(frozen=True)
class Memory:
    """Encoded source."""

    keys: tuple[Float[Tensor, "batch 1 source features"], ...]  # z, as projected by each decoder layer's score
    values: Float[Tensor, "batch 1 source dim"]  # sqrt(n) (z (+) e)
    lengths: Int[Tensor, "batch"]  # n


@dataclass(frozen=True)
class State:
    """Decoder state between tokens: the previous inputs that the next convolutions cover."""

    memory: Memory
    past: tuple[Float[Tensor, "batch past hidden_dim"], ...]  # last kernel - 1 inputs of each layer
    position: int | Int[Tensor, "batch"]  # of the next token, the same for all rows or one for each


@register("model", "conv_seq2seq")
class ConvSeq2Seq(ParallelDecoder[Memory, State], EncoderDecoder[Memory, State]):
    """Encoder and decoder of gated convolutions, with attention in every decoder layer."""

    config_class = ConvSeq2SeqConfig
    description = "ConvS2S: a convolutional encoder-decoder with attention in every layer (Gehring et al. 2017)"

    def __init__(self, config: ConvSeq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        gain = 1 - config.dropout  # compensates for dropout, which multiplies the variance of its input by 1 / gain
        self.encoder: SourceEncoder = config.encoder.build(
            EncoderSizes(
                vocab_size=config.source_vocab_size, embedding_dim=dim, dim=dim, layers=config.layers,
                dropout=config.dropout, max_length=config.max_length,
                hidden_dim=config.hidden_dim, kernel=config.kernel,
            )
        )  # fmt: skip
        positions = config.max_length + 1  # the target starts with a begin token
        self.embed = PositionalEmbedding(config.target_vocab_size, dim, positions, config.dropout)
        self.up_proj = init_variance_preserving(nn.Linear(dim, config.hidden_dim), gain)  # T
        self.decoder = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self.down_proj = nn.Sequential(
            init_variance_preserving(nn.Linear(config.hidden_dim, dim)), Dropout(config.dropout)
        )  # R
        self.readout = init_variance_preserving(nn.Linear(dim, config.target_vocab_size), gain)  # E
        if config.tie_embeddings:
            self.embed.weight = self.encoder.embed.weight
            self.readout.weight = self.encoder.embed.weight
        if config.weight_norm:
            for module in [*self.modules()]:
                if isinstance(module, nn.Linear) and module is not self.readout:
                    weight_norm(module)  # W = g v / |v|, with one g for each output (Salimans and Kingma 2016)

    def encode(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, "batch"] | None = None) -> Memory:
        """Encode the source (see `EncoderDecoder`)."""
        lengths = full_lengths(source) if source_lengths is None else source_lengths
        encoded = self.encoder(source, lengths)
        z = scale_gradient(encoded.values, 1 / len(self.decoder))
        sqrt_n = lengths.to(upcast_dtype(z.dtype)).sqrt()[:, None, None]  # n may not be exact in lower precision
        values = (scaled_residual(z, encoded.embedded) * sqrt_n).to(z.dtype)  # sqrt(n) (z (+) e)
        # The score of each layer projects the keys once, for all target tokens.
        keys = tuple(cast(DecoderBlock, block).attend.keys(z[:, None]).tensor for block in self.decoder)
        return Memory(keys, values[:, None], lengths)

    def init_state(self, memory: Memory) -> State:
        """Return the decoder state before the first token: zeros as previous inputs."""
        zeros = memory.values.new_zeros(memory.values.shape[0], self.config.kernel - 1, self.config.hidden_dim)
        return State(memory, (zeros,) * len(self.decoder), position=0)

    def forward_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """Return the logits after each token, and the new state."""
        g = self.embed(tokens, state.position)
        x = self.up_proj(g)
        present = []
        for block, past, keys in zip(self.decoder, state.past, state.memory.keys, strict=True):
            inputs = torch.cat((past.to(x.dtype), x), dim=1)
            present.append(inputs[:, x.shape[1] :])
            x = block(inputs, g, Keys(keys), state)  # Keys: already projected by the score
        logits = self.readout(self.down_proj(x))
        return logits, State(state.memory, tuple(present), state.position + tokens.shape[1])


class DecoderBlock(nn.Module):
    """x^l = (h (+) O c) (+) x^{l-1}: a causal convolution, then attention over the source."""

    def __init__(self, config: ConvSeq2SeqConfig) -> None:
        super().__init__()
        self.convolve = GatedConvolution(config.hidden_dim, config.kernel, config.dropout)
        self.q_proj = init_variance_preserving(nn.Linear(config.hidden_dim, config.dim))  # W
        score, align = config.score.build(config.attention_sizes), config.align.build(config.attention_sizes)
        self.attend = Attend(score, align, backend=config.backend, heads=1)
        self.out_proj = init_variance_preserving(nn.Linear(config.dim, config.hidden_dim))  # O

    def forward(
        self,
        inputs: Float[Tensor, "batch inputs hidden_dim"],  # x^{l-1}, with the kernel - 1 preceding inputs
        g: Float[Tensor, "batch target dim"],
        keys: Keys,
        state: State,
    ) -> Float[Tensor, "batch target hidden_dim"]:
        memory, x = state.memory, inputs[:, self.convolve.kernel - 1 :]
        h = self.convolve(inputs)  # h = conv(x^{l-1})
        d = scaled_residual(self.q_proj(h), g)  # d_i = W h_i (+) g_i
        attended = self.attend(
            d[:, None], keys, memory.values, mask=Padding(memory.lengths),
            start=state.position,  # position of the first query, for local attention over the source
        )  # fmt: skip
        c = attended.output[:, 0]  # c_i = sqrt(n) sum_j a_ij (z_j (+) e_j)
        return scaled_residual(scaled_residual(h, self.out_proj(c)), x)  # x^l = (h (+) O c) (+) x^{l-1}
