"""Linformer: self-attention with linear complexity (Wang, Li, Khabsa, Fang and Ma 2020), as an encoder of long texts.

    h_0 = norm(E[x_t] + P[t])
    h_l = norm(h' + FeedForward(h')),   h' = norm(h_{l-1} + LowRankAttention(h_{l-1})),   l = 1 ... L
    classifier    W tanh(V h_L[first])      the label of the text
    tagger        W h_L                     the label of each token

It is BERT with low-rank attention (`qkv.nn.low_rank`): keys and values are projected along the length to k rows, by
learned matrices E and F. `sharing` is that of the paper:

        none         E and F for every head of every layer
        headwise     E and F for every layer
        key_value    E = F for every layer
        layerwise    one E = F for all layers

Padding is excluded from the projections. `qkv.watch` records the weights over the k projections.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from qkv.attention import SCORES, Learned, Padding, Sizes, build_score
from qkv.config import require, require_known, require_names
from qkv.errors import InputError
from qkv.nn.block import Block
from qkv.nn.embedding import ENCODINGS, PositionedEmbedding
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import ACTIVATIONS, FeedForward
from qkv.nn.low_rank import LengthProjection, LowRankMultiHead
from qkv.nn.stack import Stack
from qkv.nn.text_encoder import TextEncoder
from qkv.registry import register
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 128, "heads": 2, "layers": 2},
    "mini": {"dim": 256, "heads": 4, "layers": 4},
    "base": {"dim": 768, "heads": 12, "layers": 12},
}
HEADS = ("classifier", "tagger")
SHARING = ("none", "headwise", "key_value", "layerwise")


@dataclass(frozen=True)
class Config:
    """Sizes and terms of the model; the vocabulary size and the labels come from the data."""

    vocabulary_size: int
    head: str | None = None  # one of HEADS
    labels: int = 2
    label_names: tuple[str, ...] = ()  # if known
    dim: int = 256
    heads: int = 4
    layers: int = 4
    feedforward: int | None = None  # None: 4 * dim
    max_length: int = 1024  # n, the number of columns of E and F
    rank: int = 128  # k
    sharing: str = "headwise"  # one of SHARING
    position: str = "learned"
    score: str = "scaled_dot"
    activation: str = "gelu"
    dropout: float = 0.1  # of embeddings and residual branches
    attention_dropout: float = 0.1  # of the attention weights
    eps: float = 1e-12  # of layer normalisation

    def __post_init__(self) -> None:
        names = ("vocabulary_size", "labels", "dim", "heads", "layers", "max_length", "rank")
        sizes = {name: getattr(self, name) for name in names}
        for name, size in (sizes | {"feedforward": self.hidden}).items():
            require(1 <= size <= 2**24, f"{name} must be between 1 and 2^24")
        require(self.layers <= 1024, "layers must be at most 1,024")
        require(self.dim % self.heads == 0, f"dim {self.dim} must be a multiple of heads {self.heads}")
        require(self.rank <= self.max_length, f"rank {self.rank} must be at most max_length {self.max_length}")
        widest = max(self.vocabulary_size, self.labels, self.hidden, self.max_length, 3 * self.dim)
        require(self.dim * widest <= 2**34, f"a matrix of {self.dim} x {widest} is too large: at most 2^34 elements")
        require(
            self.heads * self.rank * self.max_length <= 2**34,
            f"{self.heads} matrices of {self.rank} x {self.max_length} are too large: at most 2^34 elements",
        )
        require_known(self, sharing=SHARING, position=ENCODINGS, score=SCORES, activation=ACTIVATIONS)
        for name in ("dropout", "attention_dropout", "eps"):
            require(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1)")
        if self.head is not None:
            require_known(self, head=HEADS)
        require_names(self.label_names, self.labels)

    @property
    def hidden(self) -> int:
        """Width of the feed-forward networks."""
        return 4 * self.dim if self.feedforward is None else self.feedforward


@register("model", "linformer")
class Linformer(TextEncoder):
    """Bidirectional encoder with low-rank attention, with an optional head."""

    config_class = Config
    presets: ClassVar = PRESETS

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = _embedding(config)
        self.norm = nn.LayerNorm(config.dim, config.eps)
        self.dropout = Dropout(config.dropout)
        self.encoder = Stack(_block(config, keys, values) for keys, values in _mixtures(config))
        self.pooler = nn.Linear(config.dim, config.dim) if config.head == "classifier" else None  # V
        self.label = None if config.head is None else nn.Linear(config.dim, config.labels)  # W
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)  # as in BERT
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return h_L of each token; positions beyond a row's length are masked."""
        if segments is not None:
            raise InputError("a Linformer does not take segments")
        mask = None if lengths is None else Padding(lengths)
        x = self.dropout(self.norm(self.embed(tokens)))
        for block in self.encoder:
            x, _ = block(x, mask)
        return x

    def logits(self, hidden: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch *length labels"]:
        """Return the head's logits: [batch, labels] for the text, or [batch, length, labels] per token."""
        if self.label is None:
            raise InputError(f"this Linformer has no head: build it with {' or '.join(HEADS)}")
        x = hidden if self.pooler is None else self.pooler(hidden[:, 0]).tanh()
        return self.label(self.dropout(x))


def _embedding(config: Config) -> PositionedEmbedding:
    """E[x_t] + P[t], with E scaled to match a sinusoidal P."""
    positions = ENCODINGS[config.position](config.dim, config.max_length)
    scale = 1.0 if isinstance(positions, Learned) else math.sqrt(config.dim)
    return PositionedEmbedding(config.vocabulary_size, config.dim, 0.0, positions=positions, scale=scale)


def _mixtures(config: Config) -> Iterator[tuple[LengthProjection, LengthProjection]]:
    """Yield E and F of each layer."""

    def build() -> LengthProjection:
        return LengthProjection(config.max_length, config.rank, config.heads if config.sharing == "none" else 1)

    shared = build() if config.sharing == "layerwise" else None
    for _ in range(config.layers):
        keys = shared or build()
        yield keys, keys if config.sharing in ("key_value", "layerwise") else build()


def _block(config: Config, keys: LengthProjection, values: LengthProjection) -> Block:
    features = config.dim // config.heads
    score = build_score(config.score, Sizes(features, features, features, config.rank, config.heads))
    attention = LowRankMultiHead(config.dim, config.heads, keys, values, config.attention_dropout, score=score)
    feedforward = FeedForward(config.dim, config.hidden, 0.0, config.activation)
    return Block(attention, feedforward, config.dropout, norm="post", eps=config.eps)
