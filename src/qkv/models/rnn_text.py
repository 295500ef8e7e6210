"""Recurrent text classifiers and taggers.

    forward_t = cell(x_t, forward_{t-1}),   backward_t = cell(x_t, backward_{t+1}),   h_t = [forward_t ; backward_t]
                                                                            (Schuster and Paliwal 1997)

with a cell of `qkv.nn.rnn`, or with one direction h_t = forward_t. Layers are stacked, each on the states of both
directions below. The heads are:

    tagger           W h_t                      the label of each token
    classifier       W pool(h_1 .. h_n)         the label of the text, with mean, last or attention pooling
                                                (`qkv.nn.pooling`)
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from qkv.config import require, require_known, require_names
from qkv.errors import InputError
from qkv.nn.fast import Dropout
from qkv.nn.pooling import POOLINGS
from qkv.nn.rnn import BiRNN, reverse_index
from qkv.nn.stack import Stack
from qkv.nn.text_encoder import TextEncoder
from qkv.registry import register
from qkv.types import Float, Int, Tensor

HEADS = ("tagger", "classifier")


@dataclass(frozen=True)
class Config:
    """Sizes and terms of the model; the vocabulary size and the labels come from the data."""

    vocabulary_size: int
    head: str | None = None  # one of HEADS
    labels: int = 2
    label_names: tuple[str, ...] = ()  # if known
    max_length: int = 512  # maximum tokens per text in a task; not a limit of the model
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    directions: int = 2  # 1: forward only
    layers: int = 1
    embedding: int = 300
    hidden: int = 256  # of each direction
    pooling: Literal["mean", "last", "attention"] = "attention"  # of a classifier
    dropout: float = 0.5  # of the inputs of the layers and of the label layer
    word_dropout: float = 0.0  # probability of dropping a word (Iyyer et al. 2015)

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "labels", "max_length"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must be between 1 and 2^24")
        for name in ("embedding", "hidden"):
            require(1 <= getattr(self, name) <= 2**14, f"{name} must be between 1 and 2^14")
        require(1 <= self.layers <= 1024, "layers must be between 1 and 1,024")
        require(self.directions in (1, 2), "directions must be 1 (forward) or 2 (forward and backward)")
        widest = max(self.vocabulary_size * self.embedding, self.labels * self.width)
        require(widest <= 2**34, "vocabulary_size * embedding or labels * hidden is too large")
        for name in ("dropout", "word_dropout"):
            require(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1)")
        if self.head is not None:
            require_known(self, head=HEADS)
        require_names(self.label_names, self.labels)

    @property
    def width(self) -> int:
        """Size of h_t."""
        return self.directions * self.hidden


@register("model", "rnn_text")
class RNNText(TextEncoder):
    """Embedding and stacked recurrent layers, with an optional head."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary_size, config.embedding)
        self.layers = Stack(
            BiRNN(config.cell, config.width if number else config.embedding, config.width, config.directions)
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
        """Return h of each token; without `lengths`, no row is padded."""
        if segments is not None:
            raise InputError("a recurrent network does not take segments")
        lengths = _full_lengths(tokens) if lengths is None else lengths
        reverse = reverse_index(lengths, tokens.shape[1])
        x = self.embed(tokens)
        x = x * self.word_dropout(x.new_ones(*tokens.shape, 1))
        for layer in self.layers:
            x, _ = layer(self.dropout(x), lengths, reverse)
        return x

    def logits(
        self, hidden: Float[Tensor, "batch length width"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch *length labels"]:
        """Return the head's logits per token or per text; without `lengths`, no row is padded."""
        if self.label is None:
            raise InputError(f"this network has no head: build it with head {' or '.join(HEADS)}")
        if self.pool is not None:
            hidden = self.pool(hidden, _full_lengths(hidden) if lengths is None else lengths)
        return self.label(self.dropout(hidden))

    def predict(
        self, tokens: Int[Tensor, "batch length"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *length labels"]:
        return self.logits(self(tokens, lengths=lengths), lengths)

    @property
    def width(self) -> int:
        return self.config.width


def _full_lengths(rows: Tensor) -> Int[Tensor, "batch"]:
    """Return the lengths of rows without padding."""
    return torch.full(rows.shape[:1], rows.shape[1], device=rows.device)
