"""A recurrent network reads a text, and says what it is, or what each of its words is.

    ahead_t = cell(x_t, ahead_{t-1}),   back_t = cell(x_t, back_{t+1}),   h_t = [ahead_t ; back_t]
                                                                            (Schuster and Paliwal 1997)

with a cell of `qkv.nn.recurrent`, or with one direction h_t = ahead_t. Layers are stacked, each reading the states of
the one below in both directions. One of two heads is on top:

    tagger           W h_t                      the label of each word
    classifier       W pool(h_1 .. h_n)         the label of the text: of the mean of its states, of the last one, or of
                                                their average by attention (`qkv.nn.pooling`)
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from qkv.config import require, require_known, require_names
from qkv.errors import InputError
from qkv.nn.dropout import Dropout
from qkv.nn.pooling import POOLINGS
from qkv.nn.recurrent import BothWays, turning
from qkv.nn.stack import Stack
from qkv.nn.text_encoder import TextEncoder
from qkv.types import Float, Int, Tensor

HEADS = ("tagger", "classifier")


@dataclass(frozen=True)
class Config:
    """The sizes and terms of the model; the data set the size of the vocabulary and the labels."""

    vocabulary_size: int
    head: str | None = None  # one of HEADS
    labels: int = 2
    label_names: tuple[str, ...] = ()  # what they are called, where that is known
    max_length: int = 512  # how many tokens a task lets it read together; it could read on
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    directions: int = 2  # 1: ahead alone
    layers: int = 1
    embedding: int = 300
    hidden: int = 256  # of each direction
    pooling: Literal["mean", "last", "attention"] = "attention"  # what makes one vector of all words, for a classifier
    dropout: float = 0.5  # of what enters the layers and the labels
    word_dropout: float = 0.0  # how often a word is not read at all (Iyyer et al. 2015)

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "labels", "max_length"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must lie between 1 and 2^24")
        for name in ("embedding", "hidden"):
            require(1 <= getattr(self, name) <= 2**14, f"{name} must lie between 1 and 2^14")
        require(1 <= self.layers <= 1024, "layers must lie between 1 and 1,024")
        require(self.directions in (1, 2), "directions must be 1 (ahead) or 2 (ahead and back)")
        widest = max(self.vocabulary_size * self.embedding, self.labels * self.width)
        require(widest <= 2**34, "a matrix is too large: vocabulary_size by embedding, or labels by hidden")
        for name in ("dropout", "word_dropout"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1)")
        if self.head is not None:
            require_known(self, head=HEADS)
        require_names(self.label_names, self.labels)

    @property
    def width(self) -> int:
        """How many numbers h_t has."""
        return self.directions * self.hidden


class RNNText(TextEncoder):
    """An embedding, a stack of recurrent layers, and what is asked of them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary_size, config.embedding)
        self.layers = Stack(
            BothWays(config.cell, config.width if number else config.embedding, config.width, config.directions)
            for number in range(config.layers)
        )
        self.dropout = Dropout(config.dropout)
        self.word_dropout = Dropout(config.word_dropout)
        classifies = config.head == "classifier"
        self.pool = POOLINGS[config.pooling](config.width, config.directions) if classifies else None
        self.label = None if config.head is None else nn.Linear(config.width, config.labels)  # W
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch length width"]:
        """h of each token; without lengths all of them are read."""
        if segments is not None:
            raise InputError("a recurrent network reads one text at a time: it knows no segments")
        lengths = _whole(tokens) if lengths is None else lengths
        turned = turning(lengths, tokens.shape[1])
        x = self.embed(tokens)
        x = x * self.word_dropout(x.new_ones(*tokens.shape, 1))
        for layer in self.layers:
            x, _ = layer(self.dropout(x), lengths, turned)
        return x

    def logits(
        self, hidden: Float[Tensor, "batch length width"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch *length labels"]:
        """What the head says of each token, or of the text, all of whose tokens count where no lengths are given."""
        if self.label is None:
            raise InputError(f"this network has no labels to choose from: build it with a head ({' or '.join(HEADS)})")
        if self.pool is not None:
            hidden = self.pool(hidden, _whole(hidden) if lengths is None else lengths)
        return self.label(self.dropout(hidden))

    def say(
        self, tokens: Int[Tensor, "batch length"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *length labels"]:
        return self.logits(self(tokens, lengths=lengths), lengths)

    @property
    def width(self) -> int:
        return self.config.width


def _whole(rows: Tensor) -> Int[Tensor, "batch"]:
    """The lengths of rows of which nothing is padding."""
    return torch.full(rows.shape[:1], rows.shape[1], device=rows.device)
