"""Hierarchical attention networks for document classification (Yang et al. 2016).

        h_it = BiGRU over the words x_i1 .. x_iT of sentence i
        u_it = tanh(W h_it + b),   a_it = softmax_t(u_it . u_w),   s_i = sum_t a_it h_it          word attention
        h_i  = BiGRU over the sentences s_1 .. s_L
        u_i  = tanh(W h_i + b),    a_i = softmax_i(u_i . u_s),     v = sum_i a_i h_i              sentence attention
        p    = softmax(W v + b)

W, b and the queries u_w and u_s are learned, separately for each level. Without attention, s_i and v are the means of
the states, or the final states of the GRU.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from qkv.config import require, require_names
from qkv.errors import InputError, ShapeError
from qkv.nn.fast import Dropout
from qkv.nn.pooling import POOLINGS
from qkv.nn.rnn import BiRNN, reverse_index
from qkv.nn.text_encoder import TextEncoder
from qkv.registry import register
from qkv.types import Float, Int, Tensor

NOTHING = 0  # padding id of words


@dataclass(frozen=True)
class Config:
    """Sizes of the model; the vocabulary size and the labels come from the data."""

    vocabulary_size: int
    head: str | None = "classifier"  # the only head
    labels: int = 2
    label_names: tuple[str, ...] = ()  # if known
    max_length: int = 60  # maximum sentences per document in a task
    max_words: int = 40  # of a sentence; longer ones are split into parts of similar length
    embedding: int = 200
    hidden: int = 50  # of each direction of a GRU
    pooling: Literal["attention", "mean", "last"] = "attention"  # at both levels
    dropout: float = 0.5  # of the inputs of each level and of the label layer
    word_dropout: float = 0.0  # probability of dropping a word (Iyyer et al. 2015)

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "labels", "max_length"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must be between 1 and 2^24")
        for name in ("embedding", "hidden", "max_words"):
            require(1 <= getattr(self, name) <= 2**14, f"{name} must be between 1 and 2^14")
        widest = max(self.vocabulary_size * self.embedding, self.labels * self.width)
        require(widest <= 2**34, "vocabulary_size * embedding or labels * hidden is too large")
        for name in ("dropout", "word_dropout"):
            require(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1)")
        require(
            self.head in (None, "classifier"),
            f"head {self.head!r} is not supported: the network classifies documents ('classifier'); "
            "for tagging use rnn_text, bert or elmo",
        )
        require_names(self.label_names, self.labels)

    @property
    def width(self) -> int:
        """Size of h and s."""
        return 2 * self.hidden


@register("model", "han")
class HAN(TextEncoder):
    """BiGRU with attention over the words of each sentence, and over the sentences of a document.

    Under `qkv.watch` the layers are called "words", with a row for each sentence of the batch, and "sentences".
    """

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width, pooling = config.width, POOLINGS[config.pooling]
        self.embed = nn.Embedding(config.vocabulary_size, config.embedding)
        self.word_rnn = BiRNN("gru", config.embedding, width)
        self.words = pooling(width)
        self.sentence_rnn = BiRNN("gru", width, width)
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
        """Return h of each sentence.

        Words with id 0 are padding; without `lengths`, a document ends at its last sentence with a word.
        """
        if segments is not None:
            raise InputError("a hierarchical attention network does not take segments")
        if tokens.ndim != 3:
            raise ShapeError(f"expected [batch, sentences, words], got {list(tokens.shape)}")
        counts = (tokens != NOTHING).sum(dim=-1)  # T of each sentence
        if lengths is None:
            number = torch.arange(1, counts.shape[1] + 1, device=counts.device)
            lengths = (number * (counts > 0)).amax(dim=-1)
        s = self._sentences(tokens.flatten(0, 1), counts.flatten()).unflatten(0, tokens.shape[:2])
        h, _ = self.sentence_rnn(self.dropout(s), lengths, reverse_index(lengths, s.shape[1]))
        return h

    def _sentences(
        self, tokens: Int[Tensor, "sentences words"], counts: Int[Tensor, "sentences"]
    ) -> Float[Tensor, "sentences width"]:
        """Return s of each sentence; zeros for one without words."""
        x = self.embed(tokens)
        x = x * self.word_dropout(x.new_ones(*tokens.shape, 1))
        h, _ = self.word_rnn(self.dropout(x), counts, reverse_index(counts, tokens.shape[1]))
        return self.words(h, counts)

    def logits(
        self, hidden: Float[Tensor, "batch sentences width"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch labels"]:
        """Return the logits of the documents' labels; without `lengths`, no row is padded."""
        if self.label is None:
            raise InputError("this network has no head: build it with head 'classifier'")
        if lengths is None:
            lengths = torch.full(hidden.shape[:1], hidden.shape[1], device=hidden.device)
        return self.label(self.dropout(self.sentences(hidden, lengths)))  # W v + b

    def predict(
        self, tokens: Int[Tensor, "batch sentences words"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch labels"]:
        return self.logits(self(tokens, lengths=lengths), lengths)

    @property
    def width(self) -> int:
        return self.config.width
