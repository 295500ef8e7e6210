"""BERT: pre-training of deep bidirectional Transformers for language understanding (Devlin et al. 2019).

    h_0 = norm(E[x_t] + S[segment of t] + P[t])
    h_l = norm(h' + FeedForward(h')),   h' = norm(h_{l-1} + SelfAttention(h_{l-1})),   l = 1 ... L
    pooled = tanh(W h_L[CLS])

and one of several heads on top, which share all of the above:

    masked_lm        E norm(f(W h_L)) + b       which word stands at each place
    next_sentence    W pooled                   whether the second segment follows the first, or does not
    pretraining      both of these
    classifier       W pooled                   the label of the text
    tagger           W h_L                      the label of each token
    span             W h_L                      where in the text an answer begins, and where it ends

A tagger may also be told where words stand in the dependency trees of their sentences (Wang, Tu, Wang and Shi 2019),
beside or in place of where they stand in the text: D[depth of t] is added in h_0, or self-attention has vectors for the
distance between two words along the tree, or both. The trees are given, and not found by the model. Where they are
gold, they inform the label: who knows the head of a word knows much of what the word is to it.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from qkv.attention import SCORES, Learned, Mask, Padding, TreePositions, TreeRelative
from qkv.config import require, require_known, require_names
from qkv.errors import InputError
from qkv.nn.block import Block
from qkv.nn.described import PLACES, described_block, described_encoding
from qkv.nn.dropout import Dropout
from qkv.nn.embed import REACH
from qkv.nn.feedforward import ACTIVATIONS
from qkv.nn.stack import Stack
from qkv.nn.text_encoder import TextEncoder
from qkv.nn.trees import ReadsTrees, depth_encoding, depth_vectors, in_the_tree
from qkv.types import Float, Int, Tensor

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 128, "heads": 2, "layers": 2},
    "mini": {"dim": 256, "heads": 4, "layers": 4},
    "base": {"dim": 768, "heads": 12, "layers": 12},
    "large": {"dim": 1024, "heads": 16, "layers": 24},
}
HEADS = ("masked_lm", "next_sentence", "pretraining", "classifier", "tagger", "span")
OF_WORDS = ("masked_lm", "pretraining")  # the heads that say a word for each place,
OF_THE_WHOLE = ("next_sentence", "pretraining", "classifier")  # and those that say something about the whole text
LABELLED = ("classifier", "tagger")
WAYS = [*PLACES, "none"]  # to say where a token stands in the text


@dataclass(frozen=True)
class Config(ReadsTrees):
    """The sizes and terms of the model; the data set the size of the vocabulary and the number of labels."""

    vocabulary_size: int
    head: str | None = None  # one of HEADS
    labels: int = 2  # that a classifier or tagger chooses from
    label_names: tuple[str, ...] = ()  # what they are called, where that is known
    dim: int = 768
    heads: int = 12
    layers: int = 12
    feedforward: int | None = None  # None: four times dim
    segments: int = 2
    max_length: int = 512  # how many tokens it reads together: learned positions end there, the others go on
    position: str = "learned"  # one of WAYS
    tree: str = "none"  # one of qkv.nn.trees.TREES
    score: str = "scaled_dot"
    activation: str = "gelu"
    dropout: float = 0.1  # of the embeddings, and of what each layer adds
    attention_dropout: float = 0.1  # of the attention weights
    pooler: bool = True
    tie: bool = True  # one matrix for the embedding and the words of the head
    eps: float = 1e-12  # of layer normalisation

    def __post_init__(self) -> None:
        names = ("vocabulary_size", "labels", "dim", "heads", "layers", "segments", "max_length")
        sizes = {name: getattr(self, name) for name in names}
        for name, size in (sizes | {"feedforward": self.hidden}).items():
            require(1 <= size <= 2**24, f"{name} must lie between 1 and 2^24")
        require(self.layers <= 1024, "layers must be 1,024 at most")
        require(self.dim % self.heads == 0, f"dim {self.dim} must be a multiple of heads {self.heads}")
        widest = max(self.vocabulary_size, self.labels, self.hidden, self.segments, self.max_length, 3 * self.dim)
        require(self.dim * widest <= 2**34, f"a matrix of {self.dim} by {widest} numbers is too large: 2^34 at most")
        require_known(self, position=WAYS, score=SCORES, activation=ACTIVATIONS)
        require(
            self.position != "rotary" or self.head_dim % 2 == 0,
            f"position 'rotary' turns pairs of features, but a head has {self.head_dim}: choose dim and heads anew",
        )
        self.require_tree()
        require(
            self.head in (None, "tagger") or not self.reads_trees,
            f"tree {self.tree!r} takes the heads of words, which tagging alone hands on: leave it out",
        )
        for name in ("dropout", "attention_dropout", "eps"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1)")
        if self.head is not None:
            require_known(self, head=HEADS)
        require(self.pooler or self.head not in OF_THE_WHOLE, f"head {self.head!r} reads what the pooler says: set it")
        require_names(self.label_names, self.labels)

    @property
    def hidden(self) -> int:
        """The width of the feed-forward networks."""
        return 4 * self.dim if self.feedforward is None else self.feedforward

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class Pretraining(NamedTuple):
    """What the two heads of pre-training say."""

    words: Float[Tensor, "batch length vocabulary"]
    next_sentence: Float[Tensor, "batch 2"]  # the second segment follows the first, or is another text


class Bert(TextEncoder):
    """Embeddings, blocks that look both ways, and what is asked of them: `bert.logits(bert(tokens))`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config)
        self.encoder = Stack(_block(config) for _ in range(config.layers))
        self.pooler = nn.Linear(config.dim, config.dim) if config.pooler else None
        self.words = WordHead(config) if config.head in OF_WORDS else None
        self.label_dropout = Dropout(config.dropout if config.head in LABELLED else 0.0)
        self.label = _label_head(config)
        if self.words is not None and config.tie:
            self.words.readout.weight = self.embed.tokens.weight
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
        """h_L of each token. Segments are 0 unless they are given; what comes after a row's length is not looked at.

        A mask hides what else must not be seen: rows that are filled up on the left have `mask=~Prefix(padding)`.
        """
        self.config.require_told(tree, "BERT")
        if lengths is not None:
            mask = Padding(lengths) if mask is None else Padding(lengths) & mask
        x = self.embed(tokens, segments, tree)
        for block in self.encoder:
            x, _ = block(x, mask, position=in_the_tree(block, tree))
        return x

    def pooled(self, hidden: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch dim"]:
        """One vector for the whole text, made of the first token's."""
        if self.pooler is None:
            raise InputError("this BERT has no pooler: average the hidden states, or build it with pooler = true")
        return self.pooler(hidden[:, 0]).tanh()

    def logits(self, hidden: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch *shape"] | Pretraining:
        """What the head says: [batch, length, vocabulary or labels or 2] of each place, [batch, labels] of the text."""
        head = self.config.head
        if head is None:
            raise InputError(f"this BERT has no head, so it has no logits: build it with one ({', '.join(HEADS)})")
        if self.label is None:
            return self.word_logits(hidden)
        labels = self.label(self.label_dropout(self.pooled(hidden) if head in OF_THE_WHOLE else hidden))
        return Pretraining(self.word_logits(hidden), labels) if head == "pretraining" else labels

    def word_logits(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocabulary"]:
        """What the head for masked words says; training asks about the masked places alone."""
        if self.words is None:
            raise InputError(f"this BERT has no head for words: build it with one ({' or '.join(OF_WORDS)})")
        return self.words(hidden)


class Embedding(nn.Module):
    """h_0: the token, its segment, its place, and how deep it is in a tree, normalised."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary_size, config.dim)
        self.segments = nn.Embedding(config.segments, config.dim)
        self.positions = described_encoding(config)
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
            x = x * math.sqrt(x.shape[-1])  # beside sines, which are not small, the embeddings must not be
        if self.positions is not None:
            x = x + self.positions(tokens.shape[1])
        deep = depth_vectors(self.depths, tree)
        return self.dropout(self.norm(x if deep is None else x + deep))


class WordHead(nn.Module):
    """E norm(f(W h)) + b, with E the embedding of the tokens (or, untied, a matrix of its own)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.activation = config.activation
        self.transform = nn.Linear(config.dim, config.dim)
        self.norm = nn.LayerNorm(config.dim, config.eps)
        self.readout = nn.Linear(config.dim, config.vocabulary_size)

    def forward(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocabulary"]:
        return self.readout(self.norm(ACTIVATIONS[self.activation](self.transform(hidden))))


def _block(config: Config) -> Block:
    block = described_block(config, norm="post")
    if config.measures_trees:
        block.attention.attend.position = TreeRelative(config.head_dim, REACH)
    return block


def _label_head(config: Config) -> nn.Linear | None:
    """W of every head but the one for words; without labels its two outputs are yes and no, or beginning and end."""
    if config.head in (None, "masked_lm"):
        return None
    return nn.Linear(config.dim, config.labels if config.head in LABELLED else 2)
