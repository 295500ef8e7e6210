"""Encoders of source texts and of speech, which run under any decoder: recurrent, convolutional and Transformer.

A model chooses one in its config, `encoder = { name = "rnn", layers = 2, dim = 512 }`. See `SourceEncoder` for the
interface.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from qkv.attention import Padding, Sinusoidal
from qkv.config import Count, Rate, Size, require
from qkv.nn.conv import (
    GatedConvolution,
    PositionalEmbedding,
    init_variance_preserving,
    pad_same,
    scaled_residual,
)
from qkv.nn.embedding import ScaledEmbedding
from qkv.nn.encoders.log_mel import HOPS_PER_SECOND, LogMel
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.interfaces import EncodedStates, Source, SourceEncoder
from qkv.nn.multi_head import MultiHeadAttention
from qkv.nn.pooling import masked_mean, valid_positions
from qkv.nn.rnn import BiRNN, Cell, gather_time, reverse_index
from qkv.registry import register
from qkv.types import Float, Int, Tensor

SampleRate = Annotated[int, Field(ge=4000, le=192_000)]  # Hz


class EncoderSizes(NamedTuple):
    """Sizes of a model; an encoder uses those that its own options do not set."""

    vocab_size: int
    embedding_dim: int
    dim: int
    layers: int
    dropout: float
    max_length: int
    hidden_dim: int | None = None  # of convolutions; None: same as dim
    kernel: int = 3  # of convolutions
    cell: Cell = "gru"  # of recurrent layers
    tie_embeddings: bool = False  # whether the model ties the source embedding to its output layer

    def override(self, **options: Any) -> "EncoderSizes":
        """Return the sizes with those options of an encoder that are set."""
        return self._replace(**{name: value for name, value in options.items() if value is not None})


@register("encoder", "rnn")
class RNNEncoder(SourceEncoder):
    """h_i = [forward_i ; backward_i] of the last recurrent layer; `final` has h_final of each layer (see `BiRNN`)."""

    has_final_states = True

    def __init__(self, sizes: EncoderSizes, *, bidirectional: bool, reverse: bool) -> None:
        super().__init__()
        self.dim, self.final_layers, self.reverse = sizes.dim, sizes.layers, reverse
        self.embed = (ScaledEmbedding if sizes.tie_embeddings else nn.Embedding)(sizes.vocab_size, sizes.embedding_dim)
        inputs = [sizes.embedding_dim] + [sizes.dim] * (sizes.layers - 1)
        directions = 2 if bidirectional else 1
        self.layers = nn.ModuleList(BiRNN(sizes.cell, size, sizes.dim, directions) for size in inputs)
        self.dropout = Dropout(sizes.dropout)

    @classmethod
    def from_sizes(
        cls,
        sizes: EncoderSizes,
        *,
        dim: Size | None = None,  # size of h_i, both directions together; unset: hidden size of the model
        layers: Count | None = None,  # unset: layers of the model
        cell: Cell | None = None,  # unset: cell of the model
        bidirectional: bool = True,  # run in both directions
        reverse: bool = False,  # reverse the source (Sutskever, Vinyals and Le 2014)
        dropout: Rate | None = None,  # dropout of embeddings, and between layers; unset: that of the model
    ) -> "RNNEncoder":
        sizes = sizes.override(dim=dim, layers=layers, cell=cell, dropout=dropout)
        return cls(sizes, bidirectional=bidirectional, reverse=reverse)

    @classmethod
    def check_options(cls, dim: int, options: Mapping[str, Any]) -> None:
        require(
            dim % 2 == 0 or not options.get("bidirectional", True),
            f"encoder.dim {dim} must be even for a bidirectional encoder; or set encoder.bidirectional = false",
        )
        layers = options.get("layers") or 1
        require(layers * dim <= 2**24, f"encoder.layers {layers} * encoder.dim {dim} must be at most 2^24")

    def forward(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"]) -> EncodedStates:
        reverse = reverse_index(lengths, source.shape[1])
        embedded = x = self.dropout(self.embed(source.gather(1, reverse) if self.reverse else source))
        final: list[Tensor] = []
        for layer in self.layers:
            x, last = layer(self.dropout(x) if final else x, lengths, reverse)
            final.append(last)
        if self.reverse:
            x, embedded = gather_time(x, reverse), gather_time(embedded, reverse)
        return EncodedStates(x, torch.stack(final, dim=1), embedded)


@register("encoder", "pyramid")
class PyramidEncoder(SourceEncoder):
    """The listener of Listen, Attend and Spell (Chan et al. 2016): each layer but the first halves the time.

        h^1 = BiRNN(x)                                        x_i: log-mel features of frame i
        h^j = BiRNN(u),   u_i = [h^{j-1}_{2i} ; h^{j-1}_{2i+1}]

    Padding is zeroed before each pair, as is the second frame of a last pair that has only one.
    """

    has_final_states, reads_speech = True, True

    def __init__(self, sizes: EncoderSizes, log_mel: LogMel) -> None:
        super().__init__()
        require(not sizes.tie_embeddings, "the encoder 'pyramid' has no embedding to tie: set tie_embeddings = false")
        self.dim, self.final_layers, self.log_mel = sizes.dim, sizes.layers, log_mel
        inputs = [log_mel.mels] + [2 * sizes.dim] * (sizes.layers - 1)
        self.layers = nn.ModuleList(BiRNN(sizes.cell, size, sizes.dim) for size in inputs)
        self.dropout = Dropout(sizes.dropout)

    @classmethod
    def from_sizes(
        cls,
        sizes: EncoderSizes,
        *,
        dim: Size | None = None,  # size of h_i, both directions together; unset: hidden size of the model
        layers: Count = 4,  # the first has a state per frame of 10 ms, each other one half as many
        cell: Cell | None = None,  # unset: cell of the model
        mels: Count = 40,  # features of a frame
        rate: SampleRate = 16000,  # recordings are resampled to this rate
        dropout: Rate | None = None,  # dropout between layers; unset: that of the model
    ) -> "PyramidEncoder":
        sizes = sizes.override(dim=dim, layers=layers, cell=cell, dropout=dropout)
        return cls(sizes, LogMel(mels, rate, relative=True))

    @classmethod
    def check_options(cls, dim: int, options: Mapping[str, Any]) -> None:
        RNNEncoder.check_options(dim, {"layers": options.get("layers", 4)})
        require(options.get("rate", 16000) % HOPS_PER_SECOND == 0, "encoder.rate must be divisible by 100")

    def forward(self, source: Source, lengths: Int[Tensor, "batch"]) -> EncodedStates:
        x, final = source, list[Tensor]()
        for layer in self.layers:
            if final:
                x = x.masked_fill(~valid_positions(x, lengths)[..., None], 0.0)
                x = self.dropout(pair_frames(x))
                lengths = (lengths + 1) // 2
            x, last = layer(x, lengths, reverse_index(lengths, x.shape[1]))
            final.append(last)
        return EncodedStates(x, torch.stack(final, dim=1), source, lengths)


def pair_frames(x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch half twice"]:
    """Concatenate frames 2i and 2i + 1, with zeros after a last frame without a pair."""
    return F.pad(x, (0, 0, 0, x.shape[1] % 2)).unflatten(1, (-1, 2)).flatten(2)


@register("encoder", "conv")
class ConvEncoder(SourceEncoder):
    """u^0 = U e,   u^l = (conv(u^{l-1}) + u^{l-1}) sqrt(1/2),   z = V u^M: gated convolutions (Gehring et al. 2017).

    Each convolution is centered on its position, and u^M is the last layer. Padding is zeroed before each convolution.
    """

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.dim, self.kernel, dropout = sizes.dim, sizes.kernel, sizes.dropout
        hidden_dim = sizes.hidden_dim or sizes.dim
        self.embed = PositionalEmbedding(sizes.vocab_size, sizes.embedding_dim, sizes.max_length, dropout)
        self.up_proj = init_variance_preserving(nn.Linear(sizes.embedding_dim, hidden_dim), 1 - dropout)  # U
        self.convolutions = nn.ModuleList(
            GatedConvolution(hidden_dim, sizes.kernel, dropout) for _ in range(sizes.layers)
        )
        self.down_proj = init_variance_preserving(nn.Linear(hidden_dim, sizes.dim))  # V

    @classmethod
    def from_sizes(
        cls,
        sizes: EncoderSizes,
        *,
        dim: Size | None = None,  # size of z_i; unset: size of the model
        hidden_dim: Size | None = None,  # size of the convolutions
        layers: Count | None = None,  # unset: layers of the model
        kernel: Count | None = None,  # kernel width
        dropout: Rate | None = None,  # unset: dropout of the model
    ) -> "ConvEncoder":
        return cls(sizes.override(dim=dim, hidden_dim=hidden_dim, layers=layers, kernel=kernel, dropout=dropout))

    def forward(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"]) -> EncodedStates:
        embedded, valid = self.embed(source), valid_positions(source, lengths)  # e
        x = self.up_proj(embedded)
        for convolve in self.convolutions:
            x = scaled_residual(convolve(pad_same(x, self.kernel, valid)), x)
        z = self.down_proj(x)
        return EncodedStates(z, masked_mean(z, lengths)[:, None], embedded)


@register("encoder", "transformer")
class TransformerEncoder(SourceEncoder):
    """x = e + PE;   x = x + SelfAttention(norm(x)),   x = x + FeedForward(norm(x)) in each layer;   h = norm(x).

    From Vaswani et al. (2017), normalized before each sub-layer (Xiong et al. 2020).
    """

    def __init__(self, sizes: EncoderSizes, heads: int, ffn_dim: int) -> None:
        super().__init__()
        self.dim = dim = sizes.dim
        self.embed = ScaledEmbedding(sizes.vocab_size, sizes.embedding_dim)
        self.project = nn.Identity() if sizes.embedding_dim == dim else nn.Linear(sizes.embedding_dim, dim)
        self.positions = Sinusoidal(dim)
        self.dropout = Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(dim, heads, ffn_dim, sizes.dropout, "relu") for _ in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(dim)

    @classmethod
    def from_sizes(
        cls,
        sizes: EncoderSizes,
        *,
        dim: Size | None = None,  # size of h_i; unset: size of the model
        layers: Count | None = None,  # unset: layers of the model
        heads: Count = 4,  # attention heads per layer
        ffn_dim: Size | None = None,  # size of the feed-forward networks; unset: 4 dim
        dropout: Rate | None = None,  # unset: dropout of the model
    ) -> "TransformerEncoder":
        sizes = sizes.override(dim=dim, layers=layers, dropout=dropout)
        return cls(sizes, heads, ffn_dim or 4 * sizes.dim)

    @classmethod
    def check_options(cls, dim: int, options: Mapping[str, Any]) -> None:
        heads = options.get("heads", 4)
        require(dim % heads == 0, f"encoder.dim {dim} must be divisible by encoder.heads {heads}")

    def forward(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"]) -> EncodedStates:
        embedded = x = self.dropout(self.project(self.embed(source)) + self.positions(source.shape[1]))
        for block in self.blocks:
            x = block(x, lengths)
        h = self.norm(x)
        return EncodedStates(h, masked_mean(h, lengths)[:, None], embedded)


class TransformerBlock(nn.Module):
    """x = x + MultiHead(norm(x)),   x = x + FeedForward(norm(x))."""

    def __init__(self, dim: int, heads: int, ffn_dim: int, dropout: float, activation: Activation) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim, heads, dropout)
        self.feed_forward = FeedForward(dim, ffn_dim, dropout, activation)
        self.attention_norm = nn.LayerNorm(dim)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch length dim"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch length dim"]:
        mask = None if lengths is None else Padding(lengths)
        attended, _ = self.attention(self.attention_norm(x), mask)
        x = x + self.dropout(attended)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
