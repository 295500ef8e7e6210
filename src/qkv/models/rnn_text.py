"""Recurrent text classifiers and taggers.

    forward_t = cell(x_t, forward_{t-1}),   backward_t = cell(x_t, backward_{t+1}),   h_t = [forward_t ; backward_t]
                                                                            (Schuster and Paliwal 1997)

where cell is a tanh RNN, a GRU or an LSTM. A unidirectional model has h_t = forward_t. In a stack of layers, x_t is h_t
of the layer below. The heads, each W and b separate, are:

    tagger           W h_t + b                  the label of each token
    classifier       W pool(h_1 .. h_n) + b     the label of the text

where pool is the mean 1 / n sum_t h_t, the last states [forward_n ; backward_1], or attention with a learned query q,
sum_t a_t h_t,   a = softmax_t(q . tanh(V h_t + b)) (Yang et al. 2016).
"""

from typing import Literal

from pydantic import model_validator
from torch import nn

from qkv.attention import Attend, Sizes
from qkv.config import AlignTerm, Config, Count, Rate, ScoreTerm, Size, StringList, Term, require_names
from qkv.errors import InputError
from qkv.nn.fast import Dropout
from qkv.nn.interfaces import TextEncoder
from qkv.nn.multi_head import BackendName, check_terms
from qkv.nn.pooling import POOLINGS, full_lengths
from qkv.nn.rnn import BiRNN, reverse_index
from qkv.registry import register
from qkv.types import Float, Int, Tensor


class RNNTextConfig(Config):
    """Sizes and terms of the model."""

    vocab_size: Size = 30_000  # number of tokens; set by the data
    head: Literal["tagger", "classifier"] | None = None  # head of the network; set by the task
    labels: Size = 2  # number of labels; set by the data
    label_names: StringList = ()  # names of the labels; set by the data
    max_length: Size = 512  # maximum number of tokens per text in a task; not a limit of the model
    cell: Literal["rnn", "lstm", "gru"] = "lstm"  # recurrent cell
    bidirectional: bool = True  # whether to run in both directions; false: forward only
    layers: Count = 1  # number of recurrent layers
    embedding_dim: Size = 300  # size of the token embeddings
    hidden_dim: Size = 256  # size of the hidden state of each direction
    pooling: Literal["mean", "last", "attention"] = "attention"  # pooling of a classifier
    score: ScoreTerm = Term("score", "dot")  # score of attention pooling
    align: AlignTerm = Term("align", "softmax")  # of attention pooling: from scores to attention weights
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms
    dropout: Rate = 0.5  # dropout of the inputs of the layers and of the readout
    word_dropout: Rate = 0.0  # probability of dropping a word (Iyyer et al. 2015)

    @model_validator(mode="after")
    def check(self) -> "RNNTextConfig":
        require_names(self.label_names, self.labels)
        check_terms(self.sizes, score=self.score, align=self.align)
        return self

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def width(self) -> int:
        """Size of h_t."""
        return self.directions * self.hidden_dim

    @property
    def sizes(self) -> Sizes:
        """Sizes of attention pooling."""
        return Sizes(query=self.width, key=self.width, hidden=self.width, max_keys=self.max_length)


@register("model", "rnn_text")
class RNNText(TextEncoder):
    """Embedding and stacked recurrent layers, with an optional head."""

    config_class = RNNTextConfig
    description = "Bidirectional RNN (Schuster and Paliwal 1997): a text classifier or tagger"

    def __init__(self, config: RNNTextConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.layers = nn.ModuleList(
            BiRNN(config.cell, config.width if number else config.embedding_dim, config.width, config.directions)
            for number in range(config.layers)
        )
        self.dropout = Dropout(config.dropout)
        self.word_dropout = Dropout(config.word_dropout)
        self.pool = None
        if config.head == "classifier":
            score, align = config.score.build(config.sizes), config.align.build(config.sizes)
            attend = Attend(score, align, backend=config.backend, heads=1)
            self.pool = POOLINGS[config.pooling](config.width, config.directions, attend)
        self.label = None if config.head is None else nn.Linear(config.width, config.labels)  # W and b
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch length width"]:
        """Return h of each token; if `lengths` is omitted, rows are assumed to be unpadded."""
        if segments is not None:
            raise InputError("a recurrent network does not take segments")
        lengths = full_lengths(tokens) if lengths is None else lengths
        reverse = reverse_index(lengths, tokens.shape[1])
        x = self.embed(tokens)
        x = x * self.word_dropout(x.new_ones(*tokens.shape, 1))
        for layer in self.layers:
            x, _ = layer(self.dropout(x), lengths, reverse)
        return x

    def logits(
        self, hidden: Float[Tensor, "batch length width"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch *length labels"]:
        """Return the head's logits per token or per text; if `lengths` is omitted, rows are assumed to be unpadded."""
        if self.label is None:
            raise InputError("this network has no head: build it with head 'tagger' or 'classifier'")
        if self.pool is not None:
            hidden = self.pool(hidden, full_lengths(hidden) if lengths is None else lengths)
        return self.label(self.dropout(hidden))

    def predict(
        self, tokens: Int[Tensor, "batch length"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *length labels"]:
        """Return the head's logits for a padded batch."""
        return self.logits(self(tokens, lengths=lengths), lengths)

    @property
    def width(self) -> int:
        """Size of h_t."""
        return self.config.width
