"""Linformer: self-attention with linear complexity (Wang, Li, Khabsa, Fang and Ma 2020), as an encoder of long texts.

    h_0 = norm(E[x_t] + P[t])
    h_l = norm(h' + FeedForward(h')),   h' = norm(h_{l-1} + LowRankAttention(h_{l-1})),   l = 1 ... L
    classifier    W tanh(V h_L[first])      the label of the text
    tagger        W h_L                     the label of each token

It is BERT but for the attention (`qkv.nn.low_rank`), which reads k mixtures of the keys and of the values, made by
matrices E and F that are learned. Of these there are, by `sharing`, in the words of the paper:

    none         E and F of every head of every layer
    headwise     E and F of every layer
    key_value    E = F of every layer
    layerwise    one E = F

What comes after the length of a row is left out of the mixtures. `qkv.watch` shows the weights over mixtures.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from qkv.attention import SCORES, Learned, Padding, Sizes
from qkv.config import require, require_known, require_names
from qkv.errors import InputError
from qkv.nn.block import Block
from qkv.nn.dropout import Dropout
from qkv.nn.embed import ENCODINGS, PositionedEmbedding
from qkv.nn.feedforward import ACTIVATIONS, FeedForward
from qkv.nn.low_rank import LowRankMultiHead, Mixture
from qkv.nn.stack import Stack
from qkv.nn.text_encoder import TextEncoder
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
    """The sizes and terms of the model; the data set the size of the vocabulary and the number of labels."""

    vocabulary_size: int
    head: str | None = None  # one of HEADS
    labels: int = 2
    label_names: tuple[str, ...] = ()  # what they are called, where that is known
    dim: int = 256
    heads: int = 4
    layers: int = 4
    feedforward: int | None = None  # None: four times dim
    max_length: int = 1024  # n, the places that E and F have columns for
    rank: int = 128  # k
    sharing: str = "headwise"  # one of SHARING
    position: str = "learned"
    score: str = "scaled_dot"
    activation: str = "gelu"
    dropout: float = 0.1  # of the embeddings, and of what each layer adds
    attention_dropout: float = 0.1  # of the attention weights
    eps: float = 1e-12  # of layer normalisation

    def __post_init__(self) -> None:
        names = ("vocabulary_size", "labels", "dim", "heads", "layers", "max_length", "rank")
        sizes = {name: getattr(self, name) for name in names}
        for name, size in (sizes | {"feedforward": self.hidden}).items():
            require(1 <= size <= 2**24, f"{name} must lie between 1 and 2^24")
        require(self.layers <= 1024, "layers must be 1,024 at most")
        require(self.dim % self.heads == 0, f"dim {self.dim} must be a multiple of heads {self.heads}")
        require(self.rank <= self.max_length, f"{self.rank} mixtures (rank) of {self.max_length} places save nothing")
        widest = max(self.vocabulary_size, self.labels, self.hidden, self.max_length, 3 * self.dim)
        require(self.dim * widest <= 2**34, f"a matrix of {self.dim} by {widest} numbers is too large: 2^34 at most")
        require(
            self.heads * self.rank * self.max_length <= 2**34,
            f"{self.heads} matrices of {self.rank} by {self.max_length} numbers are too large: 2^34 at most",
        )
        require_known(self, sharing=SHARING, position=ENCODINGS, score=SCORES, activation=ACTIVATIONS)
        for name in ("dropout", "attention_dropout", "eps"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1)")
        if self.head is not None:
            require_known(self, head=HEADS)
        require_names(self.label_names, self.labels)

    @property
    def hidden(self) -> int:
        """The width of the feed-forward networks."""
        return 4 * self.dim if self.feedforward is None else self.feedforward


class Linformer(TextEncoder):
    """Embeddings, blocks that look both ways at mixtures, and a head."""

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
                nn.init.normal_(module.weight, std=0.02)  # as BERT begins
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """h_L of each token; what comes after a row's length is not looked at."""
        if segments is not None:
            raise InputError("a Linformer reads one text, which has no segments")
        mask = None if lengths is None else Padding(lengths)
        x = self.dropout(self.norm(self.embed(tokens)))
        for block in self.encoder:
            x, _ = block(x, mask)
        return x

    def logits(self, hidden: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch *length labels"]:
        """What the head says: [batch, labels] of the text, [batch, length, labels] of each token."""
        if self.label is None:
            raise InputError(f"this Linformer has no head, so it has no logits: build it with {' or '.join(HEADS)}")
        told = hidden if self.pooler is None else self.pooler(hidden[:, 0]).tanh()
        return self.label(self.dropout(told))


def _embedding(config: Config) -> PositionedEmbedding:
    """E[x_t] + P[t]; beside sines, which are not small, the embeddings must not be."""
    positions = ENCODINGS[config.position](config.dim, config.max_length)
    scale = 1.0 if isinstance(positions, Learned) else math.sqrt(config.dim)
    return PositionedEmbedding(config.vocabulary_size, config.dim, 0.0, positions=positions, scale=scale)


def _mixtures(config: Config) -> Iterator[tuple[Mixture, Mixture]]:
    """E and F of each layer."""

    def one() -> Mixture:
        return Mixture(config.max_length, config.rank, config.heads if config.sharing == "none" else 1)

    shared = one() if config.sharing == "layerwise" else None
    for _ in range(config.layers):
        keys = shared or one()
        yield keys, keys if config.sharing in ("key_value", "layerwise") else one()


def _block(config: Config, keys: Mixture, values: Mixture) -> Block:
    features = config.dim // config.heads
    score = SCORES[config.score].from_sizes(Sizes(features, features, features, config.rank, config.heads))
    attention = LowRankMultiHead(config.dim, config.heads, keys, values, config.attention_dropout, score=score)
    feedforward = FeedForward(config.dim, config.hidden, 0.0, config.activation)
    return Block(attention, feedforward, config.dropout, norm="post", eps=config.eps)
