"""Encoders of source texts, which run under any decoder: recurrent, convolutional and Transformer.

A model chooses one in its config, `encoder = { name = "rnn", layers = 2, dim = 512 }`. See `SourceEncoder` for the
interface.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

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
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.interfaces import EncodedStates, SourceEncoder
from qkv.nn.multi_head import MultiHeadAttention
from qkv.nn.rnn import BiRNN, Cell, gather_time, reverse_index
from qkv.registry import register
from qkv.types import Bool, Float, Int, Tensor


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
    tied: bool = False  # whether the embedding is tied to an output layer


@register("encoder", "rnn")
class RNNEncoder(SourceEncoder):
    """h_i = [forward_i ; backward_i] of the last recurrent layer; `final` has h_final of each layer (see `BiRNN`)."""

    has_final_states = True

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int,
        dim: int,
        layers: int,
        cell: Cell,
        dropout: float,
        *,
        bidirectional: bool,
        reverse: bool,
        tied: bool,
    ) -> None:
        super().__init__()
        self.dim, self.final_layers, self.reverse = dim, layers, reverse
        self.embed = (ScaledEmbedding if tied else nn.Embedding)(vocab_size, embedding_dim)
        sizes = [embedding_dim] + [dim] * (layers - 1)
        self.layers = nn.ModuleList(BiRNN(cell, size, dim, 2 if bidirectional else 1) for size in sizes)
        self.dropout = Dropout(dropout)

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
        return cls(
            sizes.vocab_size,
            sizes.embedding_dim,
            dim or sizes.dim,
            layers or sizes.layers,
            cell or sizes.cell,
            sizes.dropout if dropout is None else dropout,
            bidirectional=bidirectional,
            reverse=reverse,
            tied=sizes.tied,
        )

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


@register("encoder", "conv")
class ConvEncoder(SourceEncoder):
    """z = V conv_m(... conv_1(U e)): gated convolutions centered on each position (Gehring et al. 2017).

    Padding is zeroed before each convolution.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int,
        hidden_dim: int,
        dim: int,
        layers: int,
        kernel: int,
        dropout: float,
        max_length: int,
    ) -> None:
        super().__init__()
        self.dim, self.kernel = dim, kernel
        self.embed = PositionalEmbedding(vocab_size, embedding_dim, max_length, dropout)
        self.up_proj = init_variance_preserving(nn.Linear(embedding_dim, hidden_dim), 1 - dropout)  # U
        self.convolutions = nn.ModuleList(GatedConvolution(hidden_dim, kernel, dropout) for _ in range(layers))
        self.down_proj = init_variance_preserving(nn.Linear(hidden_dim, dim))  # V

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
        return cls(
            sizes.vocab_size,
            sizes.embedding_dim,
            hidden_dim or sizes.hidden_dim or dim or sizes.dim,
            dim or sizes.dim,
            layers or sizes.layers,
            kernel or sizes.kernel,
            sizes.dropout if dropout is None else dropout,
            sizes.max_length,
        )

    def forward(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"]) -> EncodedStates:
        embedded, valid = self.embed(source), valid_positions(source, lengths)  # e
        x = self.up_proj(embedded)
        for convolve in self.convolutions:
            x = scaled_residual(convolve(pad_same(x, self.kernel, valid)), x)
        z = self.down_proj(x)
        return EncodedStates(z, masked_mean(z, valid), embedded)


@register("encoder", "transformer")
class TransformerEncoder(SourceEncoder):
    """x = e + PE;   x = x + SelfAttention(norm(x)),   x = x + FeedForward(norm(x)) in each layer;   h = norm(x).

    From Vaswani et al. (2017), normalized before each sub-layer (Xiong et al. 2020).
    """

    def __init__(
        self, vocab_size: int, embedding_dim: int, dim: int, layers: int, heads: int, ffn_dim: int, dropout: float
    ) -> None:
        super().__init__()
        self.dim = dim
        self.embed = ScaledEmbedding(vocab_size, embedding_dim)
        self.project = nn.Identity() if embedding_dim == dim else nn.Linear(embedding_dim, dim)
        self.positions = Sinusoidal(dim)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(TransformerBlock(dim, heads, ffn_dim, dropout, "relu") for _ in range(layers))
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
        dim = dim or sizes.dim
        dropout = sizes.dropout if dropout is None else dropout
        return cls(
            sizes.vocab_size, sizes.embedding_dim, dim, layers or sizes.layers, heads, ffn_dim or 4 * dim, dropout
        )

    @classmethod
    def check_options(cls, dim: int, options: Mapping[str, Any]) -> None:
        heads = options.get("heads", 4)
        require(dim % heads == 0, f"encoder.dim {dim} must be divisible by encoder.heads {heads}")

    def forward(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"]) -> EncodedStates:
        embedded = x = self.dropout(self.project(self.embed(source)) + self.positions(source.shape[1]))
        for block in self.blocks:
            x = block(x, lengths)
        h = self.norm(x)
        return EncodedStates(h, masked_mean(h, valid_positions(source, lengths)), embedded)


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


def valid_positions(source: Int[Tensor, "batch source"], lengths: Int[Tensor, "batch"]) -> Bool[Tensor, "batch source"]:
    """Return True for tokens and False for padding."""
    return torch.arange(source.shape[1], device=source.device) < lengths[:, None]


def masked_mean(
    x: Float[Tensor, "batch length dim"], valid: Bool[Tensor, "batch length"]
) -> Float[Tensor, "batch 1 dim"]:
    """Mean over the valid positions of each row, as one layer of final states; zeros if there is none."""
    total = x.masked_fill(~valid[:, :, None], 0.0).sum(dim=1, keepdim=True)
    return total / valid.sum(dim=1).clamp(min=1)[:, None, None]
