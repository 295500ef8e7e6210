"""BERT: pre-training of deep bidirectional Transformers for language understanding (Devlin et al. 2019).

    h_0 = norm(E[x_t] + S[segment of t] + P[t])
    h_l = norm(h' + FeedForward(h')),   h' = norm(h_{l-1} + SelfAttention(h_{l-1})),   l = 1 ... L
    pooled = tanh(W h_L[CLS])

with an optional head:

    masked_lm        E norm(f(W h_L)) + b       the token at each position
    next_sentence    W pooled                   whether the second segment follows the first
    pretraining      both of these
    classifier       W pooled                   the label of the text
    tagger           W h_L                      the label of each token
    span             W h_L                      start and end of an answer

A tagger can also use positions in the dependency trees of its sentences (Wang, Tu, Wang and Shi 2019), in addition to
or instead of sequence positions: D[depth of t] is added in h_0, or self-attention uses embeddings of the distance
between two words along the tree, or both. The trees are inputs; the model does not predict them. Gold trees leak
information about the labels: the head of a word reveals much about its role.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import nn

from qkv.attention import SCORES, Learned, Mask, Padding, TreePositions, TreeRelative
from qkv.config import require, require_known, require_names
from qkv.errors import InputError
from qkv.nn.block import Block
from qkv.nn.block_config import ALL_POSITIONS, build_block, build_encoding
from qkv.nn.embedding import MAX_RELATIVE_DISTANCE
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import ACTIVATIONS
from qkv.nn.stack import Stack
from qkv.nn.text_encoder import TextEncoder
from qkv.nn.tree_positions import TreeConfig, depth_encoding, depth_vectors, tree_position
from qkv.registry import register
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 128, "heads": 2, "layers": 2},
    "mini": {"dim": 256, "heads": 4, "layers": 4},
    "base": {"dim": 768, "heads": 12, "layers": 12},
    "large": {"dim": 1024, "heads": 16, "layers": 24},
}
HEADS = ("masked_lm", "next_sentence", "pretraining", "classifier", "tagger", "span")
MLM_HEADS = ("masked_lm", "pretraining")  # heads with token logits at each position
SEQUENCE_HEADS = ("next_sentence", "pretraining", "classifier")  # heads on the pooled vector
LABEL_HEADS = ("classifier", "tagger")
POSITION_NAMES = [*ALL_POSITIONS, "none"]


@dataclass(frozen=True)
class Config(TreeConfig):
    """Sizes and terms of the model; the vocabulary size and the labels come from the data."""

    vocabulary_size: int
    head: str | None = None  # one of HEADS
    labels: int = 2  # of a classifier or tagger
    label_names: tuple[str, ...] = ()  # if known
    dim: int = 768
    heads: int = 12
    layers: int = 12
    feedforward: int | None = None  # None: 4 * dim
    segments: int = 2
    max_length: int = 512  # maximum input length; a hard limit for learned positions
    position: str = "learned"  # one of POSITION_NAMES
    tree: str = "none"  # one of qkv.nn.tree_positions.TREES
    score: str = "scaled_dot"
    activation: str = "gelu"
    dropout: float = 0.1  # of embeddings and residual branches
    attention_dropout: float = 0.1  # of the attention weights
    pooler: bool = True
    tie: bool = True  # tie the embedding and the output of the MLM head
    eps: float = 1e-12  # of layer normalisation

    def __post_init__(self) -> None:
        names = ("vocabulary_size", "labels", "dim", "heads", "layers", "segments", "max_length")
        sizes = {name: getattr(self, name) for name in names}
        for name, size in (sizes | {"feedforward": self.hidden}).items():
            require(1 <= size <= 2**24, f"{name} must be between 1 and 2^24")
        require(self.layers <= 1024, "layers must be at most 1,024")
        require(self.dim % self.heads == 0, f"dim {self.dim} must be a multiple of heads {self.heads}")
        widest = max(self.vocabulary_size, self.labels, self.hidden, self.segments, self.max_length, 3 * self.dim)
        require(self.dim * widest <= 2**34, f"a matrix of {self.dim} x {widest} is too large: at most 2^34 elements")
        require_known(self, position=POSITION_NAMES, score=SCORES, activation=ACTIVATIONS)
        require(
            self.position != "rotary" or self.head_dim % 2 == 0,
            f"position 'rotary' needs an even head size (dim / heads), not {self.head_dim}",
        )
        self.check_tree()
        require(
            self.head in (None, "tagger") or not self.uses_trees,
            f"tree {self.tree!r} needs head 'tagger': only tagging provides dependency trees",
        )
        for name in ("dropout", "attention_dropout", "eps"):
            require(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1)")
        if self.head is not None:
            require_known(self, head=HEADS)
        require(self.pooler or self.head not in SEQUENCE_HEADS, f"head {self.head!r} needs pooler = true")
        require_names(self.label_names, self.labels)

    @property
    def hidden(self) -> int:
        """Width of the feed-forward networks."""
        return 4 * self.dim if self.feedforward is None else self.feedforward

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class Pretraining(NamedTuple):
    """Logits of the two pre-training heads."""

    masked_lm: Float[Tensor, "batch length vocabulary"]
    next_sentence: Float[Tensor, "batch 2"]  # the second segment follows the first, or does not


@register("model", "bert")
class Bert(TextEncoder):
    """Bidirectional Transformer encoder with an optional head: `bert.logits(bert(tokens))`."""

    config_class = Config
    presets: ClassVar = PRESETS

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config)
        self.encoder = Stack(_block(config) for _ in range(config.layers))
        self.pooler = nn.Linear(config.dim, config.dim) if config.pooler else None
        self.mlm_head = MLMHead(config) if config.head in MLM_HEADS else None
        self.label_dropout = Dropout(config.dropout if config.head in LABEL_HEADS else 0.0)
        self.label = _label_head(config)
        if self.mlm_head is not None and config.tie:
            self.mlm_head.readout.weight = self.embed.tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        *,
        mask: Mask | None = None,
        tree: TreePositions | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return h_L of each token. `segments` default to 0; positions beyond a row's length are masked.

        `mask` masks further positions: left-padded batches use `mask=~Prefix(padding)`.
        """
        self.config.check_tree_input(tree, "BERT")
        if lengths is not None:
            mask = Padding(lengths) if mask is None else Padding(lengths) & mask
        x = self.embed(tokens, segments, tree)
        for block in self.encoder:
            x, _ = block(x, mask, position=tree_position(block, tree))
        return x

    def pooled(self, hidden: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch dim"]:
        """Return one vector per text, from the hidden state of the first token."""
        if self.pooler is None:
            raise InputError("this BERT has no pooler: average the hidden states, or build it with pooler = true")
        return self.pooler(hidden[:, 0]).tanh()

    def logits(self, hidden: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch *shape"] | Pretraining:
        """Return the head's logits: [batch, length, vocabulary, labels or 2] per token, or [batch, labels] per text."""
        head = self.config.head
        if head is None:
            raise InputError(f"this BERT has no head: build it with one of {', '.join(HEADS)}")
        if self.label is None:
            return self.mlm_logits(hidden)
        labels = self.label(self.label_dropout(self.pooled(hidden) if head in SEQUENCE_HEADS else hidden))
        return Pretraining(self.mlm_logits(hidden), labels) if head == "pretraining" else labels

    def mlm_logits(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocabulary"]:
        """Return the MLM head's logits; training computes them at the masked positions only."""
        if self.mlm_head is None:
            raise InputError(f"this BERT has no MLM head: build it with head {' or '.join(MLM_HEADS)}")
        return self.mlm_head(hidden)


class Embedding(nn.Module):
    """h_0: normalised sum of token, segment, position and tree depth embeddings."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary_size, config.dim)
        self.segments = nn.Embedding(config.segments, config.dim)
        self.positions = build_encoding(config)
        self.depths = depth_encoding(config, config.dim)  # D
        self.norm = nn.LayerNorm(config.dim, config.eps)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        tree: TreePositions | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        x = self.tokens(tokens) + (self.segments.weight[0] if segments is None else self.segments(segments))
        if self.positions is not None and not isinstance(self.positions, Learned):
            x = x * math.sqrt(x.shape[-1])  # match the scale of the sinusoidal encoding
        if self.positions is not None:
            x = x + self.positions(tokens.shape[1])
        depths = depth_vectors(self.depths, tree)
        return self.dropout(self.norm(x if depths is None else x + depths))


class MLMHead(nn.Module):
    """E norm(f(W h)) + b, with E the token embedding, or a separate matrix if untied."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.activation = config.activation
        self.transform = nn.Linear(config.dim, config.dim)
        self.norm = nn.LayerNorm(config.dim, config.eps)
        self.readout = nn.Linear(config.dim, config.vocabulary_size)

    def forward(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocabulary"]:
        return self.readout(self.norm(ACTIVATIONS[self.activation](self.transform(hidden))))


def _block(config: Config) -> Block:
    block = build_block(config, norm="post")
    if config.uses_tree_distance:
        block.attention.attend.position = TreeRelative(config.head_dim, MAX_RELATIVE_DISTANCE)
    return block


def _label_head(config: Config) -> nn.Linear | None:
    """Return W of the head, or None for the MLM head; heads without labels have two outputs."""
    if config.head in (None, "masked_lm"):
        return None
    return nn.Linear(config.dim, config.labels if config.head in LABEL_HEADS else 2)
