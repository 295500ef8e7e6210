"""Hierarchical attention networks for document classification (Yang et al. 2016).

        h_it = BiGRU over the words x_i1 .. x_iT of sentence i
        u_it = tanh(W h_it + b),   a_it = softmax_t(u_it . u_w),   s_i = sum_t a_it h_it          word attention
        h_i  = BiGRU over the sentences s_1 .. s_L
        u_i  = tanh(W h_i + b),    a_i = softmax_i(u_i . u_s),     v = sum_i a_i h_i              sentence attention
        p    = softmax(W v + b)

W and b are learned separately for words, sentences and labels. The queries, u_w of words and u_s of sentences, are also
learned. Without attention, s_i and v are the means of the states, or the final states of the GRU.
"""

from typing import Literal

import torch
from pydantic import model_validator
from torch import nn

from qkv.attention import Attend, Sizes
from qkv.config import AlignTerm, Config, Rate, ScoreTerm, Size, StringList, Term, require_names
from qkv.errors import InputError, ShapeError
from qkv.nn.fast import Dropout
from qkv.nn.interfaces import TextEncoder
from qkv.nn.multi_head import BackendName, check_terms
from qkv.nn.pooling import POOLINGS, Pooling, full_lengths
from qkv.nn.rnn import BiRNN, reverse_index
from qkv.registry import register
from qkv.types import Float, Int, Tensor

PADDING = 0  # padding id of words


class HANConfig(Config):
    """Sizes and terms of the model."""

    vocab_size: Size = 30_000  # number of words; set by the data
    head: Literal["classifier"] | None = "classifier"  # head of the network; set by the task
    labels: Size = 2  # number of labels; set by the data
    label_names: StringList = ()  # names of the labels; set by the data
    max_length: Size = 60  # maximum number of sentences per document in a task
    max_words: Size = 40  # maximum number of words per sentence; pipelines and tasks split longer sentences
    embedding_dim: Size = 200  # size of the word embeddings
    hidden_dim: Size = 50  # size of the hidden state of each direction of a GRU
    pooling: Literal["attention", "mean", "last"] = "attention"  # pooling of words and of sentences
    score: ScoreTerm = Term("score", "dot")  # score of attention pooling
    align: AlignTerm = Term("align", "softmax")  # of attention pooling: from scores to attention weights
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms
    dropout: Rate = 0.5  # dropout of the inputs of both GRUs and of the readout
    word_dropout: Rate = 0.0  # probability of dropping a word (Iyyer et al. 2015)

    @model_validator(mode="after")
    def check(self) -> "HANConfig":
        require_names(self.label_names, self.labels)
        check_terms(self.sizes(self.max_length), score=self.score, align=self.align)
        return self

    @property
    def width(self) -> int:
        """Size of h and s."""
        return 2 * self.hidden_dim

    def sizes(self, max_keys: int) -> Sizes:
        """Sizes of attention pooling over at most `max_keys` words or sentences."""
        return Sizes(query=self.width, key=self.width, hidden=self.width, max_keys=max_keys)


@register("model", "han")
class HAN(TextEncoder):
    """BiGRU with attention over the words of each sentence, and over the sentences of a document.

    Under `qkv.watch` the layers are called "words", with a row for each sentence of the batch, and "sentences".
    """

    config_class = HANConfig
    description = "HAN (Yang et al. 2016): a document classifier with attention over words and sentences"

    def __init__(self, config: HANConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.word_rnn = BiRNN("gru", config.embedding_dim, config.width)
        self.words = build_pooling(config, config.max_words)
        self.sentence_rnn = BiRNN("gru", config.width, config.width)
        self.sentences = build_pooling(config, config.max_length)
        self.label = None if config.head is None else nn.Linear(config.width, config.labels)  # readout W and b
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
        counts = (tokens != PADDING).sum(dim=-1)  # T of each sentence
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
        """Return the logits of the documents' labels; if `lengths` is omitted, rows are assumed to be unpadded."""
        if self.label is None:
            raise InputError("this network has no head: build it with head 'classifier'")
        v = self.sentences(hidden, full_lengths(hidden) if lengths is None else lengths)
        return self.label(self.dropout(v))  # W v + b

    def predict(
        self, tokens: Int[Tensor, "batch sentences words"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch labels"]:
        """Return the logits for a padded batch."""
        return self.logits(self(tokens, lengths=lengths), lengths)

    @property
    def width(self) -> int:
        """Size of the hidden state of a sentence."""
        return self.config.width


def build_pooling(config: HANConfig, max_keys: int) -> Pooling:
    """Build the pooling of words or of sentences: attention with a learned query u_w or u_s, mean or last state."""
    sizes = config.sizes(max_keys)
    attend = Attend(config.score.build(sizes), config.align.build(sizes), backend=config.backend, heads=1)
    return POOLINGS[config.pooling](config.width, attend=attend)
