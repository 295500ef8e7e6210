"""Deep contextualised word representations (Peters et al. 2018) from a bidirectional language model.

    x_t = P H(max_s relu(C * e_{t, s}))        characters e, convolutions C, highway layers H, a projection P
    H(u) = g * relu(T u) + (1 - g) * u,   g = sigmoid(G u)                                 (Srivastava et al. 2015)
    i, f, o = sigmoid(W x_t + U h_{t-1}),   g = tanh(W x_t + U h_{t-1})
    c_t = clip(f * c_{t-1} + i * g),   h_t = clip(V (o * tanh(c_t)))                             (Sak et al. 2014)
        y^1 = h^1,   y^j = h^j + y^{j-1}           for each direction, with separate weights
        p(w_{t+1} | w_1 .. w_t) = softmax(O y_t),   p(w_t | w_{t+1} .. w_n) = softmax(O y_{t+1})    forward, backward
        ELMo_t = gamma * sum_j s_j y^j_t,   s = softmax(w),   y^0_t = [x_t; x_t],   y^j_t = [forward; backward]

with an optional head; the last two have their own gamma and w, and optionally word embeddings v_t and an LSTM:

    language_model   O y^L                      the next and the previous word
    tagger           W r_t                      the label of each word; r = [ELMo; v], or the LSTM's output on it
    classifier       W pool(r_1 .. r_n)         the label of the text

Both directions share the character encoder, the projection and the output layer O. Every sentence is wrapped in begin
and end words; the network adds and removes them. The weights have the layout of the released files: the gates are i, g,
f, o, and 1 is added to f.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.precision import upcast_dtype
from qkv.config import require, require_known, require_names
from qkv.errors import InputError, ShapeError
from qkv.nn.fast import Dropout
from qkv.nn.hashed_words import HashedWords
from qkv.nn.pooling import POOLINGS
from qkv.nn.rnn import BiRNN, gather_time, reverse_index
from qkv.nn.scalar_mix import ScalarMix
from qkv.nn.stack import Stack
from qkv.nn.text_encoder import TextEncoder
from qkv.nn.word_encoder import WordEncoder
from qkv.registry import register
from qkv.tokenizers.characters import BEGIN_SENTENCE, END_SENTENCE, PADDING, add_word_boundaries
from qkv.types import Float, Int, Tensor

RELEASED = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
PRESETS: dict[str, dict[str, Any]] = {
    "small": {"dim": 128, "hidden": 1024, "highway_layers": 1},
    "medium": {"dim": 256, "hidden": 2048, "highway_layers": 1},
    "original": {"dim": 512, "hidden": 4096, "highway_layers": 2},
}
HEADS = ("language_model", "tagger", "classifier")
LABEL_HEADS = ("tagger", "classifier")


@dataclass(frozen=True)
class Config:
    """Sizes and terms of the model; without a head it only computes representations."""

    vocabulary_size: int | None = None  # of the words that a language model predicts; inputs are open-vocabulary
    head: str | None = None  # one of HEADS
    labels: int = 2  # of a classifier or tagger
    label_names: tuple[str, ...] = ()  # if known
    max_length: int = 512  # maximum words per text in a task; not a limit of the model
    max_characters: int = 50  # of a word, including its begin and end markers
    character_dim: int = 16
    filters: tuple[tuple[int, int], ...] = RELEASED  # kernel width and number of features of each convolution
    activation: Literal["relu", "tanh"] = "relu"
    normalise_words: bool = False  # layer-normalise the convolution features; not in released models
    highway_layers: int = 2
    dim: int = 512  # of x and of h in each direction
    hidden: int = 4096  # of c
    layers: int = 2
    skip: bool = True  # residual connections from the second layer on
    cell_clip: float | None = 3.0  # clip c to [-cell_clip, cell_clip]
    projection_clip: float | None = 3.0  # likewise for h
    dropout: float = 0.1  # of the inputs of the layers and of the output layer
    frozen: bool = False  # train only the head of a tagger or classifier
    mix: Literal["all", "top"] = "all"  # layers in ELMo_t
    normalise: bool = False  # layer-normalise them first
    own_words: int = 0  # size of the head's own word embeddings v_t; 0: none
    reader_hidden: int = 0  # size of the head's LSTM in each direction; 0: none
    pooling: Literal["mean", "attention"] = "mean"  # of a classifier
    task_dropout: float = 0.1  # of the inputs of that LSTM and of the label layer

    def __post_init__(self) -> None:
        for name in ("character_dim", "dim", "hidden"):
            require(1 <= getattr(self, name) <= 2**20, f"{name} must be between 1 and 2^20")
        require(3 <= self.max_characters <= 2**20, "max_characters must be between 3 and 2^20")
        size = self.vocabulary_size
        require(size is None or 1 <= size <= 2**24, "vocabulary_size must be between 1 and 2^24")
        for name in ("labels", "max_length"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must be between 1 and 2^24")
        for name in ("reader_hidden", "own_words"):
            require(0 <= getattr(self, name) <= 2**14, f"{name} must be between 0 and 2^14")
        require(1 <= self.layers <= 1024, "layers must be between 1 and 1,024")
        require(0 <= self.highway_layers <= 1024, "highway_layers must be between 0 and 1,024")
        require(1 <= len(self.filters) <= 1024, "filters must have between 1 and 1,024 entries")
        for pair in self.filters:
            require(len(pair) == 2, f"filters must be pairs of kernel width and number of features, not {pair}")
            require(
                1 <= pair[0] <= self.max_characters and 1 <= pair[1] <= 2**20,
                f"filter {pair}: the width must be between 1 and max_characters, the features between 1 and 2^20",
            )
        require(self.features * max(self.features, self.dim) <= 2**31, "filters have too many features in total")
        require((2 * self.dim) * (4 * self.hidden) <= 2**31, "dim * hidden is too large")
        for name in ("cell_clip", "projection_clip"):
            value = getattr(self, name)
            require(value is None or 0 < value < float("inf"), f"{name} must be positive and finite, or omitted")
        for name in ("dropout", "task_dropout"):
            require(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1)")
        self._check_head()

    def _check_head(self) -> None:
        head = self.head
        if head is not None:
            require_known(self, head=HEADS)
        require(
            head != "language_model" or self.vocabulary_size is not None,
            "vocabulary_size is required for head 'language_model'",
        )
        require_names(self.label_names, self.labels)
        width = max(2 * self.dim + self.own_words, 2 * self.reader_hidden)
        require(self.labels * width <= 2**31, "labels * dim is too large")
        for name in ("reader_hidden", "own_words"):
            require(
                getattr(self, name) == 0 or head in LABEL_HEADS,
                f"{name} needs a head ({' or '.join(LABEL_HEADS)})",
            )
        require(
            not self.frozen or head in LABEL_HEADS,
            f"frozen needs a head ({' or '.join(LABEL_HEADS)}): there would be nothing to train",
        )

    @property
    def features(self) -> int:
        """Number of features of all convolutions together."""
        return sum(count for _, count in self.filters)


@dataclass(frozen=True)
class State:
    """State of the layers, for carrying it over to the next sentence."""

    hidden: Float[Tensor, "batch layers directions dim"]  # h after the last word
    cell: Float[Tensor, "batch layers directions hidden"]  # c


@register("model", "elmo")
class Elmo(TextEncoder):
    """Character-based bidirectional language model, with an optional head."""

    config_class = Config
    presets: ClassVar = PRESETS

    markers: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.word_encoder = WordEncoder(
            config.dim, config.character_dim, config.filters, config.highway_layers, config.activation,
            normalise=config.normalise_words,
        )  # fmt: skip
        self.layers = Stack(ProjectedBiLSTM(config) for _ in range(config.layers))
        self.dropout = Dropout(config.dropout)
        size = config.vocabulary_size if config.head == "language_model" else None
        self.readout = None if size is None else nn.Linear(config.dim, size)  # O
        self.task = TaskHead(config) if config.head in LABEL_HEADS else None
        if config.frozen:
            for part in self._backbone:
                part.requires_grad_(False)
        markers = [add_word_boundaries([mark], config.max_characters) for mark in (BEGIN_SENTENCE, END_SENTENCE)]
        self.register_buffer("markers", torch.tensor(markers), persistent=False)

    @property
    def _backbone(self) -> tuple[nn.Module, ...]:
        """The pre-trained part, which may be frozen."""
        return self.word_encoder, self.layers, self.dropout

    def train(self, mode: bool = True) -> "Elmo":
        """Keep a frozen backbone in eval mode, without dropout."""
        super().train(mode)
        if self.config.frozen:
            for part in self._backbone:
                part.eval()
        return self

    def forward(
        self,
        tokens: Int[Tensor, "batch words characters"],
        segments: Int[Tensor, "batch words"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch words features"]:
        """Return r of each word; without a label head, the mean of the layers.

        `lengths` default to those of the padding in `tokens`.
        """
        if segments is not None:
            raise InputError("ELMo does not take segments")
        lengths = _lengths(tokens, lengths)
        layers = self.representations(tokens, lengths)
        if self.config.mix == "top":
            layers = layers[:, -1:]
        return layers.mean(dim=1) if self.task is None else self.task(layers, tokens, lengths)

    def logits(
        self, hidden: Float[Tensor, "batch words features"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch *words labels"]:
        """Return the head's logits per word or per text; without `lengths`, no row is padded."""
        if self.task is None:
            raise InputError(f"this ELMo has no label head: build it with head {' or '.join(LABEL_HEADS)}")
        return self.task.logits(hidden, lengths)

    def predict(
        self, tokens: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *words labels"]:
        return self.logits(self(tokens, lengths=lengths), lengths)

    @property
    def width(self) -> int:
        return 2 * self.config.dim if self.task is None else self.task.width

    def representations(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch layers words features"]:
        """Return y^0 to y^L of each word, zeros at padding."""
        layers, _ = self.forward_from(characters, self.init_state(characters.shape[0]), lengths)
        return layers

    def init_state(self, batch: int) -> State:
        """Return the state before the first sentence."""
        config, weight = self.config, self.word_encoder.project.weight
        return State(
            weight.new_zeros(batch, config.layers, 2, config.dim),
            weight.new_zeros(batch, config.layers, 2, config.hidden, dtype=upcast_dtype(weight.dtype)),
        )

    def forward_from(
        self,
        characters: Int[Tensor, "batch words characters"],
        state: State,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch layers words features"], State]:
        """Return y^0 to y^L from a state left by previous sentences, and the new state.

        The released models were trained on a stream of text, and represent a sentence better with one before it. The
        forward state is that at the end of a sentence, the backward state that at its start; an empty sentence does not
        change it.
        """
        lengths = _lengths(characters, lengths)
        x, layers, new_state = self._run(characters, lengths, state)
        directions = torch.stack([x.expand(2, -1, -1, -1), *layers], dim=2)[..., 1:-1, :]  # without begin and end
        joined = torch.cat(directions.unbind(0), dim=-1)  # batch layers words features
        valid = torch.arange(characters.shape[1], device=lengths.device) < lengths[:, None]
        joined = joined.masked_fill(~valid[:, None, :, None], 0.0)
        nonempty = (lengths > 0)[:, None, None, None]
        hidden = torch.where(nonempty, new_state.hidden, state.hidden)
        return joined, State(hidden, torch.where(nonempty, new_state.cell, state.cell))

    def bilm_logits(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"] | None = None
    ) -> tuple[Float[Tensor, "batch positions vocabulary"], Float[Tensor, "batch positions vocabulary"]]:
        """Return the logits of both language models, with w_0 = begin and w_{n+1} = end of the sentence:

        forward[:, t] of w_{t+1} given w_0 .. w_t, and backward[:, t] of w_t given w_{t+1} .. w_{n+1}, for t = 0 .. n.
        """
        if self.readout is None:
            raise InputError("this ELMo has no output layer: build it with head language_model")
        _, layers, _ = self._run(characters, _lengths(characters, lengths), self.init_state(characters.shape[0]))
        forward, backward = self.dropout(layers[-1]).unbind(0)
        return self.readout(forward[:, :-1]), self.readout(backward[:, 1:])

    def _run(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"], state: State
    ) -> tuple[Float[Tensor, "batch positions dim"], list[Float[Tensor, "directions batch positions dim"]], State]:
        """Return x, y^1 to y^L in both directions, all including begin and end, and the new state."""
        x = self.word_encoder(self._add_markers(characters, lengths))
        # The backward direction runs over each sentence reversed, so that padding comes last in both.
        lengths = lengths + 2
        reverse = reverse_index(lengths, x.shape[1])
        y = torch.stack((x, gather_time(x, reverse)))
        layers, hidden, cell = [], [], []
        for number, layer in enumerate(self.layers):
            y = self.dropout(y)
            h, *last = layer(y, lengths, state.hidden[:, number], state.cell[:, number])
            y = h + y if number and self.config.skip else h
            layers.append(torch.stack((y[0], gather_time(y[1], reverse))))
            hidden.append(last[0])
            cell.append(last[1])
        return x, layers, State(torch.stack(hidden, dim=1), torch.stack(cell, dim=1))

    def _add_markers(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"]
    ) -> Int[Tensor, "batch positions characters"]:
        begin, end = self.markers.to(characters.dtype)
        if characters.shape[2] != len(begin):
            raise ShapeError(f"expected words of {len(begin)} characters, got {characters.shape[2]}")
        position = torch.arange(characters.shape[1] + 2, device=characters.device)[None, :, None]
        last = lengths[:, None, None] + 1
        words = F.pad(characters, (0, 0, 1, 1), value=PADDING).masked_fill(position > last, PADDING)
        return torch.where(position == 0, begin, torch.where(position == last, end, words))


class ProjectedBiLSTM(nn.Module):
    """LSTM with projection in both directions, which are round_up together."""

    forget_bias: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.cell_clip, self.projection_clip = config.cell_clip, config.projection_clip
        self.gates = nn.Parameter(torch.empty(2, 2 * config.dim, 4 * config.hidden))  # W and U of i, g, f and o
        self.bias = nn.Parameter(torch.zeros(2, 4 * config.hidden))
        self.project = nn.Parameter(torch.empty(2, config.hidden, config.dim))  # V
        for weight in (self.gates, self.project):
            nn.init.uniform_(weight, -(config.hidden**-0.5), config.hidden**-0.5)
        # forget gate bias of 1 (Jozefowicz et al. 2015)
        forget_bias = torch.zeros(4, config.hidden).index_fill_(0, torch.tensor(2), 1.0).flatten()
        self.register_buffer("forget_bias", forget_bias, persistent=False)

    def forward(
        self,
        x: Float[Tensor, "directions batch length dim"],
        lengths: Int[Tensor, "batch"],
        hidden: Float[Tensor, "batch directions dim"],
        cell: Float[Tensor, "batch directions hidden"],
    ) -> tuple[
        Float[Tensor, "directions batch length dim"],
        Float[Tensor, "batch directions dim"],
        Float[Tensor, "batch directions hidden"],
    ]:
        """Return h for all words in the order of each direction, and h and c after the last word."""
        w, u = self.gates.chunk(2, dim=1)
        inputs = torch.einsum("xbld,xdg->lxbg", x, w)  # all steps at once
        # No autocast: use the weights' precision, and at least float32 for c, which is a sum over all steps.
        with torch.autocast(x.device.type, enabled=False):
            inputs = inputs.to(u.dtype) + (self.bias + self.forget_bias)[:, None]
            h, c = hidden.transpose(0, 1).to(u.dtype), cell.transpose(0, 1).to(upcast_dtype(u.dtype))
            states, cells = [], []
            for step in inputs.unbind(0):
                i, g, f, o = torch.baddbmm(step, h, u).chunk(4, dim=-1)
                c = _clip(f.sigmoid() * c + i.sigmoid() * g.tanh(), self.cell_clip)
                h = _clip(torch.bmm((o.sigmoid() * c.tanh()).to(u.dtype), self.project), self.projection_clip)
                states.append(h)
                cells.append(c)
            return torch.stack(states, dim=2), _last(states, lengths), _last(cells, lengths)


class TaskHead(nn.Module):
    """Task head: r from the layers, and the label logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.mix = ScalarMix(1 if config.mix == "top" else 1 + config.layers, normalise=config.normalise)
        self.dropout = Dropout(config.task_dropout)
        self.word_embedding = HashedWords(config.max_characters, config.own_words) if config.own_words else None
        inputs = 2 * config.dim + config.own_words
        self.width = 2 * config.reader_hidden or inputs
        self.rnn = BiRNN("lstm", inputs, self.width) if config.reader_hidden else None
        self.pool = POOLINGS[config.pooling](self.width) if config.head == "classifier" else None
        self.label = nn.Linear(self.width, config.labels)  # W

    def forward(
        self,
        layers: Float[Tensor, "batch layers words features"],
        characters: Int[Tensor, "batch words characters"],
        lengths: Int[Tensor, "batch"],
    ) -> Float[Tensor, "batch words width"]:
        words = self.mix(layers)
        if self.word_embedding is not None:
            words = torch.cat((words, self.word_embedding(characters)), dim=-1)
        if self.rnn is None:
            return words
        return self.rnn(self.dropout(words), lengths, reverse_index(lengths, words.shape[1]))[0]

    def logits(
        self, hidden: Float[Tensor, "batch words width"], lengths: Int[Tensor, "batch"] | None
    ) -> Float[Tensor, "batch *words labels"]:
        if self.pool is not None:
            if lengths is None:
                lengths = torch.full(hidden.shape[:1], hidden.shape[1], device=hidden.device)
            hidden = self.pool(hidden, lengths)
        return self.label(self.dropout(hidden))


def _lengths(
    characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"] | None
) -> Int[Tensor, "batch"]:
    """Number of words of each sentence."""
    return (characters[..., 0] != PADDING).sum(dim=1) if lengths is None else lengths


def _clip(x: Float[Tensor, "*shape"], limit: float | None) -> Float[Tensor, "*shape"]:
    return x if limit is None else x.clamp(-limit, limit)


def _last(
    steps: list[Float[Tensor, "directions batch width"]], lengths: Int[Tensor, "batch"]
) -> Float[Tensor, "batch directions width"]:
    """Return the step at the last position of each sentence."""
    rows = torch.stack(steps).permute(2, 0, 1, 3)  # batch length directions width
    return rows.gather(1, (lengths - 1)[:, None, None, None].expand(-1, 1, *rows.shape[2:]))[:, 0]
