"""Hierarchical attention networks for document classification (Yang et al. 2016).

    h_it = GRU both ways over the words x_i1 .. x_iT of sentence i
    u_it = tanh(W h_it + b),   a_it = softmax_t(u_it . u_w),   s_i = sum_t a_it h_it          which words matter in it
    h_i  = GRU both ways over the sentences s_1 .. s_L
    u_i  = tanh(W h_i + b),    a_i = softmax_i(u_i . u_s),     v = sum_i a_i h_i              and which sentences
    p    = softmax(W v + b)

W, b and the questions u_w ("what is the informative word?") and u_s are learned, each level has its own. Without
attention, at either level v and s_i are the means of the states, or what the GRU was left with at its ends.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from qkv.config import require, require_names
from qkv.errors import InputError, ShapeError
from qkv.nn.dropout import Dropout
from qkv.nn.pooling import POOLINGS
from qkv.nn.recurrent import BothWays, turning
from qkv.nn.text_encoder import TextEncoder
from qkv.types import Float, Int, Tensor

NOTHING = 0  # in place of a word that is not there: sentences are filled up with it


@dataclass(frozen=True)
class Config:
    """The sizes of the model; the data set the size of the vocabulary and the labels."""

    vocabulary_size: int
    head: str | None = "classifier"  # there is no other
    labels: int = 2
    label_names: tuple[str, ...] = ()  # what they are called, where that is known
    max_length: int = 60  # how many sentences of a document a task lets it read
    max_words: int = 40  # of a sentence; a longer one is read as several, of much the same length
    embedding: int = 200
    hidden: int = 50  # of each direction of a GRU
    pooling: Literal["attention", "mean", "last"] = "attention"  # at both levels
    dropout: float = 0.5  # of what enters each level and the labels
    word_dropout: float = 0.0  # how often a word is not read at all (Iyyer et al. 2015)

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "labels", "max_length"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must lie between 1 and 2^24")
        for name in ("embedding", "hidden", "max_words"):
            require(1 <= getattr(self, name) <= 2**14, f"{name} must lie between 1 and 2^14")
        widest = max(self.vocabulary_size * self.embedding, self.labels * self.width)
        require(widest <= 2**34, "a matrix is too large: vocabulary_size by embedding, or labels by hidden")
        for name in ("dropout", "word_dropout"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1)")
        require(
            self.head in (None, "classifier"),
            f"head {self.head!r}: a hierarchical attention network says something of whole documents ('classifier'), "
            "and nothing of their words; rnn_text, bert and elmo do",
        )
        require_names(self.label_names, self.labels)

    @property
    def width(self) -> int:
        """How many numbers h and s have."""
        return 2 * self.hidden


class HAN(TextEncoder):
    """A reader and an attention for the words of each sentence, and for the sentences of a document.

    Under `qkv.watch` the layers are called "words", with a row for each sentence of the batch, and "sentences".
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width, pooling = config.width, POOLINGS[config.pooling]
        self.embed = nn.Embedding(config.vocabulary_size, config.embedding)
        self.word_reader = BothWays("gru", config.embedding, width)
        self.words = pooling(width)
        self.sentence_reader = BothWays("gru", width, width)
        self.sentences = pooling(width)
        self.label = None if config.head is None else nn.Linear(width, config.labels)
        self.dropout = Dropout(config.dropout)
        self.word_dropout = Dropout(config.word_dropout)
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(
        self,
        tokens: Int[Tensor, "batch sentences words"],
        segments: Int[Tensor, "batch sentences"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch sentences width"]:
        """h of each sentence. A sentence has the words that are not 0, a document so many sentences: where that is not
        said, up to the last that has a word.
        """
        if segments is not None:
            raise InputError("a hierarchical attention network reads one document at a time: it knows no segments")
        if tokens.ndim != 3:
            raise ShapeError(f"a document is [sentences, words], so a batch has 3 dimensions, not {list(tokens.shape)}")
        counts = (tokens != NOTHING).sum(dim=-1)  # T of each sentence
        if lengths is None:
            place = torch.arange(1, counts.shape[1] + 1, device=counts.device)
            lengths = (place * (counts > 0)).amax(dim=-1)
        s = self._sentences(tokens.flatten(0, 1), counts.flatten()).unflatten(0, tokens.shape[:2])
        h, _ = self.sentence_reader(self.dropout(s), lengths, turning(lengths, s.shape[1]))
        return h

    def _sentences(
        self, tokens: Int[Tensor, "sentences words"], counts: Int[Tensor, "sentences"]
    ) -> Float[Tensor, "sentences width"]:
        """s of each sentence, whatever document it is in; zeros for one without words."""
        x = self.embed(tokens)
        x = x * self.word_dropout(x.new_ones(*tokens.shape, 1))
        h, _ = self.word_reader(self.dropout(x), counts, turning(counts, tokens.shape[1]))
        return self.words(h, counts)

    def logits(
        self, hidden: Float[Tensor, "batch sentences width"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch labels"]:
        """What the labels of the documents are, all of whose sentences count where no lengths are given."""
        if self.label is None:
            raise InputError("this network has no labels to choose from: build it with the head 'classifier'")
        if lengths is None:
            lengths = torch.full(hidden.shape[:1], hidden.shape[1], device=hidden.device)
        return self.label(self.dropout(self.sentences(hidden, lengths)))  # W v + b

    def say(
        self, tokens: Int[Tensor, "batch sentences words"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch labels"]:
        return self.logits(self(tokens, lengths=lengths), lengths)

    @property
    def width(self) -> int:
        return self.config.width
