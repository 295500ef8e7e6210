"""Attention is all you need (Vaswani et al. 2017): an encoder and a decoder of attention and feed-forward layers.

    encoder block:  x = x + SelfAttention(x);                          x = x + FeedForward(x)
    decoder block:  y = y + MaskedSelfAttention(y);  y = y + CrossAttention(y, x);  y = y + FeedForward(y)
    p(y_{t+1}) = softmax(E y_t + b)

With norm = "pre" each sub-layer reads layer-normalised input, and what leaves a stack is normalised once more: it
trains without a delicate warm-up (Xiong et al. 2020). With norm = "post", as in the paper, each sum is normalised.

The encoder may also be told where words stand in the dependency trees of their sentences (Wang, Tu, Wang and Shi 2019),
beside where they stand in the text: D[depth of t] is added to the embeddings of the source, or its self-attention has
vectors for the distance between two words along the tree, or both. The trees are given, and not found by the model.
"""

from dataclasses import dataclass

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
)
from qkv.config import require, require_known
from qkv.nn.block import NORMS, Block
from qkv.nn.dropout import Dropout
from qkv.nn.embed import ENCODINGS, POSITIONS, REACH, PositionedEmbedding
from qkv.nn.encoder_decoder import EncoderDecoder
from qkv.nn.feedforward import ACTIVATIONS, FeedForward
from qkv.nn.heads import MultiHead
from qkv.nn.stack import Stack
from qkv.nn.trees import ReadsTrees, depth_encoding, depth_vectors, in_the_tree
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, int]] = {
    # for small corpora, as Wu et al. 2021 ("Good for misconceived reasons") name it
    "tiny": {"dim": 128, "heads": 4, "encoder_layers": 4, "decoder_layers": 4, "feedforward": 256},
    # Vaswani et al. 2017, table 3
    "base": {"dim": 512, "heads": 8, "encoder_layers": 6, "decoder_layers": 6, "feedforward": 2048},
    "big": {"dim": 1024, "heads": 16, "encoder_layers": 6, "decoder_layers": 6, "feedforward": 4096},
}


@dataclass(frozen=True)
class Config(ReadsTrees):
    """The sizes and terms of the model; the data sets the sizes of the vocabularies."""

    source_size: int
    target_size: int
    dim: int = 256
    heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 3
    feedforward: int = 1024
    dropout: float = 0.1
    attention_dropout: float | None = None  # of the weights of attention; None: as dropout
    activation_dropout: float | None = None  # inside the feed-forward networks; None: as dropout
    norm: str = "pre"
    activation: str = "relu"
    score: str = "scaled_dot"
    position: str = "sinusoidal"
    tree: str = "none"  # one of qkv.nn.trees.TREES: what the encoder is told of the trees of sources
    tie_embeddings: bool = True  # one matrix for source, target and output, where the vocabulary is shared
    tie_output: bool = False  # one matrix for target and output, where the source has its own
    scale_embeddings: bool = True  # by sqrt(dim)
    output_bias: bool = False  # b
    max_length: int = 512  # the longest source or target it will be asked to handle
    # The numbers of these tokens, where they are not those of the vocabularies that qkv makes.
    pad_token: int | None = None
    begin_token: int | None = None
    end_token: int | None = None

    def __post_init__(self) -> None:
        for name in ("source_size", "target_size", "dim", "heads", "encoder_layers", "decoder_layers", "feedforward"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must lie between 1 and 2^24")
        require(1 <= self.max_length <= 2**24, "max_length must lie between 1 and 2^24")
        require(max(self.encoder_layers, self.decoder_layers) <= 1024, "more than 1,024 layers")
        widest = max(3 * self.dim, self.source_size, self.target_size, self.feedforward, self.max_length)
        require(self.dim * widest <= 2**36, f"dim {self.dim} makes a matrix of more than 2^36 numbers")
        require(self.dim % self.heads == 0, f"dim {self.dim} must be a multiple of heads {self.heads}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            share = getattr(self, name)
            require(share is None or 0 <= share < 1, f"{name} must lie in [0, 1)")
        require_known(self, norm=NORMS, activation=ACTIVATIONS, score=SCORES, position=ENCODINGS | POSITIONS)
        require(
            self.position != "rotary" or self.dim // self.heads % 2 == 0,
            f"rotary positions turn pairs of features, but dim {self.dim} / heads {self.heads} is odd",
        )
        self.require_tree()
        require(
            not self.tie_embeddings or self.source_size == self.target_size,
            "tie_embeddings needs one vocabulary for source and target",
        )
        for name in ("pad_token", "begin_token", "end_token"):
            number = getattr(self, name)
            size = min(self.source_size, self.target_size) if name == "pad_token" else self.target_size
            require(number is None or 0 <= number < size, f"{name} {number} is not one of {size} tokens")

    @property
    def dropout_of_weights(self) -> float:
        """How much dropout there is of the weights of attention."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def dropout_inside(self) -> float:
        """How much dropout there is inside the feed-forward networks."""
        return self.dropout if self.activation_dropout is None else self.activation_dropout


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
        self.source_embed = embedding(config, config.source_size)
        self.source_depths = depth_encoding(config, config.dim)  # D
        self.target_embed = embedding(config, config.target_size)
        self.encoder = Stack(encoder_block(config) for _ in range(config.encoder_layers))
        self.encoder_norm = final_norm(config)
        self.decoder = Stack(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.decoder_norm = final_norm(config)
        self.readout = nn.Linear(config.dim, config.target_size, bias=False)  # E
        self.readout_bias = nn.Parameter(torch.zeros(1, config.target_size)) if config.output_bias else None  # b
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
        """Read the source; where the config asks for it, also where its tokens stand in trees."""
        self.config.require_told(tree, "Transformer")
        mask = None if source_lengths is None else Padding(source_lengths)
        x = self.source_embed(source, added=depth_vectors(self.source_depths, tree))
        for block in self.encoder:
            x, _ = block(x, mask, position=in_the_tree(block, tree))
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
        if self.readout_bias is not None:
            logits = logits + self.readout_bias
        return logits, State(state.sources, state.lengths, tuple(present), state.position + tokens.shape[1])


class DecoderBlock(nn.Module):
    """Masked self-attention, attention over the source, then the feed-forward network."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.before = config.norm == "pre"
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
        read, present = self.self_attention(self._given(y, self.self_norm), Causal(), past)
        y = self._added(y, read, self.self_norm)
        mask = None if lengths is None else Padding(lengths)
        start = 0 if past is None else past.length
        read = self.cross_attention.cross(self._given(y, self.cross_norm), source, mask, start=start)
        y = self._added(y, read, self.cross_norm)
        made = self.feedforward(self._given(y, self.feedforward_norm))
        return self._added(y, made, self.feedforward_norm), present

    def _given(self, y: Float[Tensor, "batch target dim"], norm: nn.LayerNorm) -> Float[Tensor, "batch target dim"]:
        """What a sub-layer is given to read."""
        return norm(y) if self.before else y

    def _added(
        self, y: Float[Tensor, "batch target dim"], made: Float[Tensor, "batch target dim"], norm: nn.LayerNorm
    ) -> Float[Tensor, "batch target dim"]:
        """What a sub-layer has made of y, added to y."""
        total = y + self.dropout(made)
        return total if self.before else norm(total)


def encoder_block(config: Config) -> Block:
    """Self-attention, then the feed-forward network."""
    within = TreeRelative(config.dim // config.heads, REACH) if config.measures_trees else position(config)
    return Block(attention(config, within), feedforward(config), config.dropout, norm=config.norm)


def attention(config: Config, position: Position | None = None) -> MultiHead:
    """Attention in the config's heads, by its score; self-attention may be told of positions."""
    features = config.dim // config.heads
    sizes = Sizes(features, features, hidden=features, max_keys=config.max_length + 1, heads=config.heads)
    score = SCORES[config.score].from_sizes(sizes)
    return MultiHead(config.dim, config.heads, config.dropout_of_weights, score=score, position=position)


def feedforward(config: Config) -> FeedForward:
    return FeedForward(config.dim, config.feedforward, config.dropout_inside, config.activation)


def position(config: Config) -> Position | None:
    """What self-attention is told of positions, where the embeddings tell it nothing."""
    make = POSITIONS.get(config.position)
    return None if make is None else make(config.dim, config.heads)


def embedding(config: Config, size: int) -> PositionedEmbedding:
    """Tokens, and where they stand unless self-attention is told; the begin token has a place too."""
    make = ENCODINGS.get(config.position)
    positions: Encoding | None = None if make is None else make(config.dim, config.max_length + 1)
    scale = None if config.scale_embeddings else 1.0
    return PositionedEmbedding(size, config.dim, config.dropout, positions=positions, scale=scale)


def final_norm(config: Config) -> nn.Module:
    """What leaves a stack of pre-norm blocks was never normalised as a whole; after post-norm blocks it just was."""
    return nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()
