"""Attention is all you need (Vaswani et al. 2017): an encoder and a decoder of attention and feed-forward layers.

    encoder block:  x = x + SelfAttention(x);                          x = x + FeedForward(x)
    decoder block:  y = y + MaskedSelfAttention(y);  y = y + CrossAttention(y, x);  y = y + FeedForward(y)

each sub-layer reading layer-normalised input (pre-norm, which trains without a delicate warm-up).
"""

from dataclasses import dataclass

from torch import nn

from qkv.attention import Cache, Causal, KeyValue, Padding
from qkv.config import require
from qkv.nn.dropout import Dropout
from qkv.nn.embed import PositionedEmbedding
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.nn.feedforward import FeedForward
from qkv.nn.heads import MultiHead
from qkv.nn.stack import Stack
from qkv.types import Float, Int, Tensor


@dataclass(frozen=True)
class Config:
    """The sizes of the model; the data sets the sizes of the vocabularies."""

    source_size: int
    target_size: int
    dim: int = 256
    heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 3
    feedforward: int = 1024
    dropout: float = 0.1
    tie_embeddings: bool = True  # one matrix for source, target and output, where the vocabulary is shared
    max_length: int = 512  # the longest source or target it will be asked to handle

    def __post_init__(self) -> None:
        for name in ("source_size", "target_size", "dim", "heads", "encoder_layers", "decoder_layers", "feedforward"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must lie between 1 and 2^24")
        require(1 <= self.max_length <= 2**24, "max_length must lie between 1 and 2^24")
        require(max(self.encoder_layers, self.decoder_layers) <= 1024, "more than 1,024 layers")
        require(self.dim % self.heads == 0, f"dim {self.dim} must be a multiple of heads {self.heads}")
        require(0 <= self.dropout < 1, "dropout must lie in [0, 1)")
        require(
            not self.tie_embeddings or self.source_size == self.target_size,
            "tie_embeddings needs one vocabulary for source and target",
        )


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves for the decoder."""

    hidden: Float[Tensor, "batch source dim"]
    lengths: Int[Tensor, "batch"] | None


@dataclass(frozen=True)
class State:
    """What the decoder carries from token to token."""

    sources: tuple[KeyValue, ...]  # for each layer, the keys and values of the source, computed once
    lengths: Int[Tensor, "batch"] | None  # of the source
    past: tuple[Cache, ...] | None  # for each layer, the keys and values of the tokens so far; None before the first
    position: int


class Transformer(EncoderDecoder[Memory, State]):
    """The encoder-decoder Transformer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.source_embed = PositionedEmbedding(config.source_size, config.dim, config.dropout)
        self.target_embed = PositionedEmbedding(config.target_size, config.dim, config.dropout)
        self.encoder = Stack(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.encoder_norm = nn.LayerNorm(config.dim)
        self.decoder = Stack(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.decoder_norm = nn.LayerNorm(config.dim)
        self.readout = nn.Linear(config.dim, config.target_size, bias=False)
        if config.tie_embeddings:
            self.target_embed.tokens.weight = self.source_embed.tokens.weight
            self.readout.weight = self.source_embed.tokens.weight

    def encode(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, "batch"] | None = None) -> Memory:
        mask = None if source_lengths is None else Padding(source_lengths)
        x = self.source_embed(source)
        for block in self.encoder:
            x = block(x, mask)
        return Memory(self.encoder_norm(x), source_lengths)

    def start(self, memory: Memory) -> State:
        sources = tuple(block.cross_attention.keys_values(memory.hidden) for block in self.decoder)
        return State(sources, memory.lengths, past=None, position=0)

    def advance(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        y = self.target_embed(tokens, offset=state.position)
        past = state.past or (None,) * len(self.decoder)
        present = []
        for block, own, source in zip(self.decoder, past, state.sources, strict=True):
            y, own = block(y, own, source, state.lengths)
            present.append(own)
        logits = self.readout(self.decoder_norm(y))
        return logits, State(state.sources, state.lengths, tuple(present), state.position + tokens.shape[1])


class EncoderBlock(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = MultiHead(config.dim, config.heads, config.dropout)
        self.attention_norm = nn.LayerNorm(config.dim)
        self.feedforward = FeedForward(config.dim, config.feedforward, config.dropout)
        self.feedforward_norm = nn.LayerNorm(config.dim)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "batch source dim"], mask: Padding | None) -> Float[Tensor, "batch source dim"]:
        read, _ = self.attention(self.attention_norm(x), mask)
        x = x + self.dropout(read)
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))


class DecoderBlock(nn.Module):
    """Masked self-attention, attention over the source, then the feed-forward network."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attention = MultiHead(config.dim, config.heads, config.dropout)
        self.self_norm = nn.LayerNorm(config.dim)
        self.cross_attention = MultiHead(config.dim, config.heads, config.dropout)
        self.cross_norm = nn.LayerNorm(config.dim)
        self.feedforward = FeedForward(config.dim, config.feedforward, config.dropout)
        self.feedforward_norm = nn.LayerNorm(config.dim)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        y: Float[Tensor, "batch target dim"],
        past: Cache | None,
        source: KeyValue,
        lengths: Int[Tensor, "batch"] | None,
    ) -> tuple[Float[Tensor, "batch target dim"], Cache]:
        read, present = self.self_attention(self.self_norm(y), Causal(), past)
        y = y + self.dropout(read)
        mask = None if lengths is None else Padding(lengths)
        start = 0 if past is None else past.length
        y = y + self.dropout(self.cross_attention.cross(self.cross_norm(y), source, mask, start=start))
        return y + self.dropout(self.feedforward(self.feedforward_norm(y))), present
