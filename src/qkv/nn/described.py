"""Parts of a Transformer as the words and sizes of its config describe them."""

from typing import Protocol, runtime_checkable

from qkv.attention import SCORES, Encoding, Score, Sizes
from qkv.nn.block import Block
from qkv.nn.embed import ENCODINGS, POSITIONS
from qkv.nn.feedforward import FeedForward
from qkv.nn.heads import MultiHead

PLACES = [*ENCODINGS, *POSITIONS]  # the ways to say where a token stands


@runtime_checkable
class Description(Protocol):
    """What the config of a stack of blocks says of each."""

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
    def position(self) -> str: ...  # one of PLACES
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


def described_encoding(config: Description) -> Encoding | None:
    """What is added to embeddings to say where a token stands; None where attention knows it by itself."""
    make = ENCODINGS.get(config.position)
    return None if make is None else make(config.dim, config.max_length)


def described_block(config: Description, *, norm: str, score: Score | None = None) -> Block:
    """Self-attention by the config's score, or the given one, and position, and the feed-forward network."""
    sizes = Sizes(config.head_dim, config.head_dim, config.head_dim, config.max_length, config.heads)
    within = POSITIONS.get(config.position)
    attention = MultiHead(
        config.dim,
        config.heads,
        config.attention_dropout,
        score=SCORES[config.score].from_sizes(sizes) if score is None else score,
        position=None if within is None else within(config.dim, config.heads),
    )
    feedforward = FeedForward(config.dim, config.hidden, 0.0, config.activation)
    return Block(attention, feedforward, config.dropout, norm=norm, eps=config.eps)
