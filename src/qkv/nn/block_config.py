"""Build Transformer blocks and position encodings from a model config."""

from typing import Protocol, runtime_checkable

from qkv.attention import Encoding, Score, Sizes, build_score
from qkv.nn.block import Block
from qkv.nn.embedding import ENCODINGS, POSITIONS
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multi_head import MultiHead

ALL_POSITIONS = [*ENCODINGS, *POSITIONS]  # added to embeddings, or applied inside self-attention


@runtime_checkable
class BlockConfig(Protocol):
    """Config fields needed to build one block."""

    @property
    def dim(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def hidden(self) -> int: ...  # of the feed-forward network
    @property
    def max_length(self) -> int: ...
    @property
    def position(self) -> str: ...  # one of ALL_POSITIONS
    @property
    def score(self) -> str: ...
    @property
    def activation(self) -> str: ...
    @property
    def dropout(self) -> float: ...
    @property
    def attention_dropout(self) -> float: ...
    @property
    def eps(self) -> float: ...


def build_encoding(config: BlockConfig) -> Encoding | None:
    """Return the position encoding added to embeddings, or None if positions act inside self-attention."""
    encoding = ENCODINGS.get(config.position)
    return None if encoding is None else encoding(config.dim, config.max_length)


def build_block(config: BlockConfig, *, norm: str, score: Score | None = None) -> Block:
    """Build a block; `score` overrides the config's score."""
    sizes = Sizes(config.head_dim, config.head_dim, config.head_dim, config.max_length, config.heads)
    position = POSITIONS.get(config.position)
    attention = MultiHead(
        config.dim,
        config.heads,
        config.attention_dropout,
        score=build_score(config.score, sizes) if score is None else score,
        position=None if position is None else position(config.dim, config.heads),
    )
    feedforward = FeedForward(config.dim, config.hidden, 0.0, config.activation)
    return Block(attention, feedforward, config.dropout, norm=norm, eps=config.eps)
