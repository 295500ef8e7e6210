"""Attention is all you need (Vaswani et al. 2017): an encoder and a decoder of attention and feed-forward layers.

    encoder block:  x = x + SelfAttention(x);                          x = x + FeedForward(x)
    decoder block:  y = y + MaskedSelfAttention(y);  y = y + CrossAttention(y, x);  y = y + FeedForward(y)
    p(y_{t+1}) = softmax(E y_t + b)

With norm = "pre" the input of each sub-layer is layer-normalised, and the output of each stack once more: it trains
without a delicate warm-up (Xiong et al. 2020). With norm = "post", as in the paper, each sum is normalised.

The encoder can also use positions in the dependency trees of its sentences (Wang, Tu, Wang and Shi 2019), in addition
to sequence positions: D[depth of t] is added to the source embeddings, or its self-attention uses embeddings of the
distance between two words along the tree, or both. The trees are inputs; the model does not predict them.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from qkv.attention import (
    SCORES,
    Cache,
    Causal,
    Encoding,
    KeyValue,
    Padding,
    Position,
    Sizes,
    TreePositions,
    TreeRelative,
    build_score,
)
from qkv.config import require, require_known
from qkv.nn.block import NORMS, Block
from qkv.nn.embedding import ENCODINGS, MAX_RELATIVE_DISTANCE, POSITIONS, PositionedEmbedding
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import ACTIVATIONS, FeedForward
from qkv.nn.multi_head import MultiHead
from qkv.nn.stack import Stack
from qkv.nn.tree_positions import TreeConfig, depth_encoding, depth_vectors, tree_position
from qkv.registry import register
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, int]] = {
    # for small corpora, as in Wu et al. 2021 ("Good for misconceived reasons")
    "tiny": {"dim": 128, "heads": 4, "encoder_layers": 4, "decoder_layers": 4, "feedforward": 256},
    # Vaswani et al. 2017, table 3
    "base": {"dim": 512, "heads": 8, "encoder_layers": 6, "decoder_layers": 6, "feedforward": 2048},
    "big": {"dim": 1024, "heads": 16, "encoder_layers": 6, "decoder_layers": 6, "feedforward": 4096},
}


@dataclass(frozen=True)
class Config(TreeConfig):
    """Sizes and terms of the model; the vocabulary sizes come from the data."""

    source_vocab_size: int
    target_vocab_size: int
    dim: int = 256
    heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 3
    feedforward: int = 1024
    dropout: float = 0.1
    attention_dropout: float | None = None  # of the attention weights; None: same as dropout
    activation_dropout: float | None = None  # inside the feed-forward networks; None: same as dropout
    norm: str = "pre"
    activation: str = "relu"
    score: str = "scaled_dot"
    position: str = "sinusoidal"
    tree: str = "none"  # one of qkv.nn.tree_positions.TREES
    tie_embeddings: bool = True  # tie source, target and output; needs a shared vocabulary
    tie_output: bool = False  # tie target and output only
    scale_embeddings: bool = True  # by sqrt(dim)
    output_bias: bool = False  # b
    max_length: int = 512  # maximum source and target length
    # Special token ids, if they differ from those of vocabularies built by qkv.
    pad_token: int | None = None
    begin_token: int | None = None
    end_token: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "source_vocab_size",
            "target_vocab_size",
            "dim",
            "heads",
            "encoder_layers",
            "decoder_layers",
            "feedforward",
        ):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must be between 1 and 2^24")
        require(1 <= self.max_length <= 2**24, "max_length must be between 1 and 2^24")
        require(
            max(self.encoder_layers, self.decoder_layers) <= 1024,
            "encoder_layers and decoder_layers must be at most 1,024",
        )
        widest = max(3 * self.dim, self.source_vocab_size, self.target_vocab_size, self.feedforward, self.max_length)
        require(self.dim * widest <= 2**36, f"dim {self.dim} gives a matrix of more than 2^36 elements")
        require(self.dim % self.heads == 0, f"dim {self.dim} must be a multiple of heads {self.heads}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            p = getattr(self, name)
            require(p is None or 0 <= p < 1, f"{name} must be in [0, 1)")
        require_known(self, norm=NORMS, activation=ACTIVATIONS, score=SCORES, position=ENCODINGS | POSITIONS)
        require(
            self.position != "rotary" or self.dim // self.heads % 2 == 0,
            f"position 'rotary' needs an even head size, but dim {self.dim} / heads {self.heads} is odd",
        )
        self.check_tree()
        require(
            not self.tie_embeddings or self.source_vocab_size == self.target_vocab_size,
            "tie_embeddings needs a shared vocabulary for source and target",
        )
        for name in ("pad_token", "begin_token", "end_token"):
            token = getattr(self, name)
            size = (
                min(self.source_vocab_size, self.target_vocab_size) if name == "pad_token" else self.target_vocab_size
            )
            require(token is None or 0 <= token < size, f"{name} {token} is not one of {size} tokens")

    @property
    def attention_dropout_p(self) -> float:
        """Dropout rate of the attention weights."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def activation_dropout_p(self) -> float:
        """Dropout rate inside the feed-forward networks."""
        return self.dropout if self.activation_dropout is None else self.activation_dropout


@dataclass(frozen=True)
class Memory:
    """Output of the encoder."""

    hidden: Float[Tensor, "batch source dim"]
    lengths: Int[Tensor, "batch"] | None


@dataclass(frozen=True)
class State:
    """Decoder state between tokens."""

    sources: tuple[KeyValue, ...]  # keys and values of the source for each layer
    lengths: Int[Tensor, "batch"] | None  # of the source
    past: tuple[Cache, ...] | None  # key/value cache of each layer; None before the first token
    position: int


@register("model", "transformer")
class Transformer(EncoderDecoder[Memory, State]):
    """The encoder-decoder Transformer."""

    config_class = Config
    presets: ClassVar = PRESETS

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.source_embed = embedding(config, config.source_vocab_size)
        self.source_depths = depth_encoding(config, config.dim)  # D
        self.target_embed = embedding(config, config.target_vocab_size)
        self.encoder = Stack(encoder_block(config) for _ in range(config.encoder_layers))
        self.encoder_norm = final_norm(config)
        self.decoder = Stack(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.decoder_norm = final_norm(config)
        self.readout = nn.Linear(config.dim, config.target_vocab_size, bias=False)  # E
        self.readout_bias = nn.Parameter(torch.zeros(1, config.target_vocab_size)) if config.output_bias else None  # b
        if config.tie_embeddings:
            self.target_embed.tokens.weight = self.source_embed.tokens.weight
        if config.tie_embeddings or config.tie_output:
            self.readout.weight = self.target_embed.tokens.weight

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        source_lengths: Int[Tensor, "batch"] | None = None,
        *,
        tree: TreePositions | None = None,
    ) -> Float[Tensor, "batch target vocabulary"]:
        return self.decode(target, self.encode(source, source_lengths, tree=tree))

    def encode(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, "batch"] | None = None,
        *,
        tree: TreePositions | None = None,
    ) -> Memory:
        """Encode the source; `tree` is required if the config uses trees."""
        self.config.check_tree_input(tree, "Transformer")
        mask = None if source_lengths is None else Padding(source_lengths)
        x = self.source_embed(source, added=depth_vectors(self.source_depths, tree))
        for block in self.encoder:
            x, _ = block(x, mask, position=tree_position(block, tree))
        return Memory(self.encoder_norm(x), source_lengths)

    def init_state(self, memory: Memory) -> State:
        sources = tuple(block.cross_attention.keys_values(memory.hidden) for block in self.decoder)
        return State(sources, memory.lengths, past=None, position=0)

    def advance(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        y = self.target_embed(tokens, offset=state.position)
        past = state.past or (None,) * len(self.decoder)
        present = []
        for block, cache, source in zip(self.decoder, past, state.sources, strict=True):
            y, cache = block(y, cache, source, state.lengths)
            present.append(cache)
        logits = self.readout(self.decoder_norm(y))
        if self.readout_bias is not None:
            logits = logits + self.readout_bias
        return logits, State(state.sources, state.lengths, tuple(present), state.position + tokens.shape[1])


class DecoderBlock(nn.Module):
    """Masked self-attention, cross-attention over the source, then the feed-forward network."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.self_attention = attention(config, position(config))
        self.self_norm = nn.LayerNorm(config.dim)
        self.cross_attention = attention(config)
        self.cross_norm = nn.LayerNorm(config.dim)
        self.feedforward = feedforward(config)
        self.feedforward_norm = nn.LayerNorm(config.dim)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        y: Float[Tensor, "batch target dim"],
        past: Cache | None,
        source: KeyValue,
        lengths: Int[Tensor, "batch"] | None,
    ) -> tuple[Float[Tensor, "batch target dim"], Cache]:
        attended, present = self.self_attention(self._input(y, self.self_norm), Causal(), past)
        y = self._residual(y, attended, self.self_norm)
        mask = None if lengths is None else Padding(lengths)
        start = 0 if past is None else past.length
        attended = self.cross_attention.cross(self._input(y, self.cross_norm), source, mask, start=start)
        y = self._residual(y, attended, self.cross_norm)
        output = self.feedforward(self._input(y, self.feedforward_norm))
        return self._residual(y, output, self.feedforward_norm), present

    def _input(self, y: Float[Tensor, "batch target dim"], norm: nn.LayerNorm) -> Float[Tensor, "batch target dim"]:
        """Return the input of a sub-layer."""
        return norm(y) if self.pre_norm else y

    def _residual(
        self, y: Float[Tensor, "batch target dim"], output: Float[Tensor, "batch target dim"], norm: nn.LayerNorm
    ) -> Float[Tensor, "batch target dim"]:
        """Add the residual connection."""
        total = y + self.dropout(output)
        return total if self.pre_norm else norm(total)


def encoder_block(config: Config) -> Block:
    """Build a block of self-attention and feed-forward network."""
    relative = (
        TreeRelative(config.dim // config.heads, MAX_RELATIVE_DISTANCE)
        if config.uses_tree_distance
        else position(config)
    )
    return Block(attention(config, relative), feedforward(config), config.dropout, norm=config.norm)


def attention(config: Config, position: Position | None = None) -> MultiHead:
    """Build multi-head attention."""
    features = config.dim // config.heads
    sizes = Sizes(features, features, hidden=features, max_keys=config.max_length + 1, heads=config.heads)
    score = build_score(config.score, sizes)
    return MultiHead(config.dim, config.heads, config.attention_dropout_p, score=score, position=position)


def feedforward(config: Config) -> FeedForward:
    return FeedForward(config.dim, config.feedforward, config.activation_dropout_p, config.activation)


def position(config: Config) -> Position | None:
    """Return the position used inside self-attention, if any."""
    make = POSITIONS.get(config.position)
    return None if make is None else make(config.dim, config.heads)


def embedding(config: Config, size: int) -> PositionedEmbedding:
    """Build token embeddings with position encodings, if any; the begin token takes a position, too."""
    make = ENCODINGS.get(config.position)
    positions: Encoding | None = None if make is None else make(config.dim, config.max_length + 1)
    scale = None if config.scale_embeddings else 1.0
    return PositionedEmbedding(size, config.dim, config.dropout, positions=positions, scale=scale)


def final_norm(config: Config) -> nn.Module:
    """Return the final layer norm of a pre-norm stack; a post-norm stack ends with one already."""
    return nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()
