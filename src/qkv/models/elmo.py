"""Deep contextualised word representations (Peters et al. 2018): what two language models know about a word.

    x_t = P H(max_s relu(C * e_{t, s}))        characters e, convolutions C, highway layers H, a projection P
    H(u) = g * relu(T u) + (1 - g) * u,   g = sigmoid(G u)                                 (Srivastava et al. 2015)
    i, f, o = sigmoid(W x_t + U h_{t-1}),   g = tanh(W x_t + U h_{t-1})
    c_t = clip(f * c_{t-1} + i * g),   h_t = clip(V (o * tanh(c_t)))                             (Sak et al. 2014)
    y^1 = h^1,   y^j = h^j + y^{j-1}           each layer reads the one below, ahead and, with weights of its own, back
    p(w_{t+1} | w_1 .. w_t) = softmax(O y_t ahead),   p(w_t | w_{t+1} .. w_n) = softmax(O y_{t+1} back)
    ELMo_t = gamma * sum_j s_j y^j_t,   s = softmax(w),   y^0_t = [x_t; x_t],   y^j_t = [ahead; back]

and one of several heads on top, the last two with gamma, w and, where it is asked for, vectors v_t of words and an LSTM
of their own:

    language_model   O y^L                      which word comes next, and which came before
    tagger           W r_t                      the label of each word; r = [ELMo; v], or what the LSTM makes of it
    classifier       W pool(r_1 .. r_n)         the label of the text

Both directions share the characters, the projection and the output layer O, and nothing else. Every sentence is read
with a word before it that begins it, and one after it that ends it; the network puts them there and takes them off.
The weights are laid out as in the files that were released: the gates are i, g, f, o, and f has 1 added to it.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention.precision import upcast_dtype
from qkv.config import require, require_known, require_names
from qkv.data.characters import BEGIN_SENTENCE, END_SENTENCE, PADDING, add_word_boundaries
from qkv.errors import InputError, ShapeError
from qkv.nn.dropout import Dropout
from qkv.nn.hashed_words import HashedWords
from qkv.nn.layer_mix import Mix
from qkv.nn.pooling import POOLINGS
from qkv.nn.recurrent import BothWays as Reader
from qkv.nn.recurrent import take, turning
from qkv.nn.stack import Stack
from qkv.nn.text_encoder import TextEncoder
from qkv.nn.word_encoder import WordEncoder
from qkv.types import Float, Int, Tensor

RELEASED = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
PRESETS: dict[str, dict[str, Any]] = {
    "small": {"dim": 128, "hidden": 1024, "highway_layers": 1},
    "medium": {"dim": 256, "hidden": 2048, "highway_layers": 1},
    "original": {"dim": 512, "hidden": 4096, "highway_layers": 2},
}
HEADS = ("language_model", "tagger", "classifier")
LABELLED = ("tagger", "classifier")


@dataclass(frozen=True)
class Config:
    """The sizes of the model; without a head it gives representations alone."""

    vocabulary_size: int | None = None  # of the words that a language model predicts; it reads any
    head: str | None = None  # one of HEADS
    labels: int = 2  # that a classifier or tagger chooses from
    label_names: tuple[str, ...] = ()  # what they are called, where that is known
    max_length: int = 512  # how many words a task lets it read together; it could read on
    max_characters: int = 50  # of a word, its two marks among them
    character_dim: int = 16
    filters: tuple[tuple[int, int], ...] = RELEASED  # the width of each convolution, and how many features it finds
    activation: Literal["relu", "tanh"] = "relu"
    normalise_words: bool = False  # what the convolutions find of each, to mean 0 and variance 1; the released do not
    highway_layers: int = 2
    dim: int = 512  # of a word, and of h in each direction
    hidden: int = 4096  # of c
    layers: int = 2
    skip: bool = True  # whether what a layer reads is added to what it gives, from the second on
    cell_clip: float | None = 3.0  # c stays between this and its negative
    projection_clip: float | None = 3.0  # and so does h
    dropout: float = 0.1  # of what enters the layers and the output layer
    frozen: bool = False  # whether a tagger or classifier leaves all of this as it was, and learns what is its own
    mix: Literal["all", "top"] = "all"  # the layers that it makes ELMo_t of
    normalise: bool = False  # whether each of them has mean 0 and variance 1 before, at every word
    own_words: int = 0  # features of the v that a task learns of each word, beside ELMo_t; 0: there is none
    reader_hidden: int = 0  # of the LSTM that reads both, in each direction; 0: there is none
    pooling: Literal["mean", "attention"] = "mean"  # what makes one vector of all words, for a classifier
    task_dropout: float = 0.1  # of what enters that LSTM and the labels

    def __post_init__(self) -> None:
        for name in ("character_dim", "dim", "hidden"):
            require(1 <= getattr(self, name) <= 2**20, f"{name} must lie between 1 and 2^20")
        require(3 <= self.max_characters <= 2**20, "max_characters must lie between 3 (one, and two marks) and 2^20")
        require(self.vocabulary_size is None or 1 <= self.vocabulary_size <= 2**24, "vocabulary_size: 1 to 2^24")
        for name in ("labels", "max_length"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must lie between 1 and 2^24")
        for name in ("reader_hidden", "own_words"):
            require(0 <= getattr(self, name) <= 2**14, f"{name} must lie between 0 and 2^14")
        require(1 <= self.layers <= 1024, "layers must lie between 1 and 1,024")
        require(0 <= self.highway_layers <= 1024, "highway_layers must lie between 0 and 1,024")
        require(1 <= len(self.filters) <= 1024, "filters must be between 1 and 1,024 pairs")
        for pair in self.filters:
            require(len(pair) == 2, f"filters must be pairs of a width and a number of features, not {pair}")
            require(
                1 <= pair[0] <= self.max_characters and 1 <= pair[1] <= 2**20,
                f"filter {pair}: a width must lie between 1 and max_characters, its features between 1 and 2^20",
            )
        require(self.features * max(self.features, self.dim) <= 2**31, "the filters find too many features together")
        require((2 * self.dim) * (4 * self.hidden) <= 2**31, "dim and hidden are too large together")
        for name in ("cell_clip", "projection_clip"):
            value = getattr(self, name)
            require(value is None or 0 < value < float("inf"), f"{name} must be above 0 and finite, or left out")
        for name in ("dropout", "task_dropout"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1)")
        self._check_head()

    def _check_head(self) -> None:
        head = self.head
        if head is not None:
            require_known(self, head=HEADS)
        require(
            head != "language_model" or self.vocabulary_size is not None,
            "vocabulary_size: a language model has to know how many words it predicts",
        )
        require_names(self.label_names, self.labels)
        read = max(2 * self.dim + self.own_words, 2 * self.reader_hidden)
        require(self.labels * read <= 2**31, "labels, dim: too large a head together")
        for name in ("reader_hidden", "own_words"):
            require(
                getattr(self, name) == 0 or head in LABELLED,
                f"{name} is for what a task learns of its own: it needs a head ({' or '.join(LABELLED)})",
            )
        require(
            not self.frozen or head in LABELLED,
            f"frozen: without a head ({' or '.join(LABELLED)}) nothing would be left to learn",
        )

    @property
    def features(self) -> int:
        """How many features the convolutions find in a word."""
        return sum(found for _, found in self.filters)


@dataclass(frozen=True)
class State:
    """What the layers carry from one sentence to the next, where it is carried."""

    hidden: Float[Tensor, "batch layers directions dim"]  # h after the last word that was read
    cell: Float[Tensor, "batch layers directions hidden"]  # c


class Elmo(TextEncoder):
    """A character encoder under a language model of each direction, and what is asked of them."""

    marks: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.words = WordEncoder(
            config.dim, config.character_dim, config.filters, config.highway_layers, config.activation,
            normalise=config.normalise_words,
        )  # fmt: skip
        self.layers = Stack(BothWays(config) for _ in range(config.layers))
        self.dropout = Dropout(config.dropout)
        size = config.vocabulary_size if config.head == "language_model" else None
        self.readout = None if size is None else nn.Linear(config.dim, size)  # O
        self.task = TaskReader(config) if config.head in LABELLED else None
        if config.frozen:
            for part in self._below:
                part.requires_grad_(False)
        marks = [add_word_boundaries([mark], config.max_characters) for mark in (BEGIN_SENTENCE, END_SENTENCE)]
        self.register_buffer("marks", torch.tensor(marks), persistent=False)

    @property
    def _below(self) -> tuple[nn.Module, ...]:
        """What comes before a task's own part, and may be frozen."""
        return self.words, self.layers, self.dropout

    def train(self, mode: bool = True) -> "Elmo":
        """What is frozen has no dropout, either."""
        super().train(mode)
        if self.config.frozen:
            for part in self._below:
                part.eval()
        return self

    def forward(
        self,
        tokens: Int[Tensor, "batch words characters"],
        segments: Int[Tensor, "batch words"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch words features"]:
        """r of each word; without a head for labels, ELMo_t of a mix that has learned nothing: the mean of the layers.

        `lengths` are known from the characters, too.
        """
        if segments is not None:
            raise InputError("an ELMo reads one text at a time: it knows no segments")
        lengths = _counted(tokens, lengths)
        layers = self.representations(tokens, lengths)
        if self.config.mix == "top":
            layers = layers[:, -1:]
        return layers.mean(dim=1) if self.task is None else self.task(layers, tokens, lengths)

    def logits(
        self, hidden: Float[Tensor, "batch words features"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch *words labels"]:
        """What the head says of each word, or of the text, all of whose words count where no lengths are given."""
        if self.task is None:
            raise InputError(f"this ELMo has no labels to choose from: build it with a head ({' or '.join(LABELLED)})")
        return self.task.logits(hidden, lengths)

    def say(
        self, tokens: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *words labels"]:
        return self.logits(self(tokens, lengths=lengths), lengths)

    @property
    def width(self) -> int:
        return 2 * self.config.dim if self.task is None else self.task.width

    def representations(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch layers words features"]:
        """y^0 to y^L of each word, zeros where there is none."""
        layers, _ = self.read(characters, self.start(characters.shape[0]), lengths)
        return layers

    def start(self, batch: int) -> State:
        """The state before the first sentence."""
        config, weight = self.config, self.words.project.weight
        return State(
            weight.new_zeros(batch, config.layers, 2, config.dim),
            weight.new_zeros(batch, config.layers, 2, config.hidden, dtype=upcast_dtype(weight.dtype)),
        )

    def read(
        self,
        characters: Int[Tensor, "batch words characters"],
        state: State,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch layers words features"], State]:
        """The same from a state that other sentences left, and the state that these leave.

        The released models were trained on a stream of text, and know a sentence better with one before it. A state
        goes on from the end of a sentence ahead, and from its beginning back; an empty sentence leaves it as it was.
        """
        lengths = _counted(characters, lengths)
        x, layers, after = self._run(characters, lengths, state)
        sides = torch.stack([x.expand(2, -1, -1, -1), *layers], dim=2)[..., 1:-1, :]  # without the marks
        joined = torch.cat(sides.unbind(0), dim=-1)  # batch layers words features
        there = torch.arange(characters.shape[1], device=lengths.device) < lengths[:, None]
        joined = joined.masked_fill(~there[:, None, :, None], 0.0)
        kept = (lengths > 0)[:, None, None, None]
        return joined, State(torch.where(kept, after.hidden, state.hidden), torch.where(kept, after.cell, state.cell))

    def predict(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"] | None = None
    ) -> tuple[Float[Tensor, "batch places vocabulary"], Float[Tensor, "batch places vocabulary"]]:
        """The logits of both language models, for w_0 = the mark before a sentence and w_{n+1} = the one after it:

        ahead[:, t] of w_{t+1} given w_0 .. w_t, and back[:, t] of w_t given w_{t+1} .. w_{n+1}, for t = 0 .. n.
        """
        if self.readout is None:
            raise InputError("this ELMo predicts no words: build it with the head language_model")
        _, layers, _ = self._run(characters, _counted(characters, lengths), self.start(characters.shape[0]))
        ahead, back = self.dropout(layers[-1]).unbind(0)
        return self.readout(ahead[:, :-1]), self.readout(back[:, 1:])

    def _run(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"], state: State
    ) -> tuple[Float[Tensor, "batch places dim"], list[Float[Tensor, "directions batch places dim"]], State]:
        """x, and y^1 to y^L in both directions, the marks among the places; and the state after them."""
        x = self.words(self._with_marks(characters, lengths))
        # The direction back reads each sentence turned round: padding comes last in both, where it can do no harm.
        lengths = lengths + 2
        turned = turning(lengths, x.shape[1])
        y = torch.stack((x, take(x, turned)))
        layers, hidden, cell = [], [], []
        for number, layer in enumerate(self.layers):
            y = self.dropout(y)
            h, *last = layer(y, lengths, state.hidden[:, number], state.cell[:, number])
            y = h + y if number and self.config.skip else h
            layers.append(torch.stack((y[0], take(y[1], turned))))
            hidden.append(last[0])
            cell.append(last[1])
        return x, layers, State(torch.stack(hidden, dim=1), torch.stack(cell, dim=1))

    def _with_marks(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"]
    ) -> Int[Tensor, "batch places characters"]:
        begin, end = self.marks.to(characters.dtype)
        if characters.shape[2] != len(begin):
            raise ShapeError(f"words of {characters.shape[2]} characters, where this model reads {len(begin)} of each")
        place = torch.arange(characters.shape[1] + 2, device=characters.device)[None, :, None]
        last = lengths[:, None, None] + 1
        words = F.pad(characters, (0, 0, 1, 1), value=PADDING).masked_fill(place > last, PADDING)
        return torch.where(place == 0, begin, torch.where(place == last, end, words))


class BothWays(nn.Module):
    """An LSTM with projection for each direction, a step of both at once."""

    remember: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.cell_clip, self.projection_clip = config.cell_clip, config.projection_clip
        self.gates = nn.Parameter(torch.empty(2, 2 * config.dim, 4 * config.hidden))  # W above U, of i, g, f and o
        self.bias = nn.Parameter(torch.zeros(2, 4 * config.hidden))
        self.project = nn.Parameter(torch.empty(2, config.hidden, config.dim))  # V
        for weight in (self.gates, self.project):
            nn.init.uniform_(weight, -(config.hidden**-0.5), config.hidden**-0.5)
        # f: to forget has to be learned (Jozefowicz et al. 2015)
        remember = torch.zeros(4, config.hidden).index_fill_(0, torch.tensor(2), 1.0).flatten()
        self.register_buffer("remember", remember, persistent=False)

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
        """h for all words in the order that each direction reads them, and h and c after the last of them."""
        w, u = self.gates.chunk(2, dim=1)
        given = torch.einsum("xbld,xdg->lxbg", x, w)  # of all steps at once
        # In the weights' own precision, also under autocast; and c in float32 at least, for it is a sum over all steps.
        with torch.autocast(x.device.type, enabled=False):
            given = given.to(u.dtype) + (self.bias + self.remember)[:, None]
            h, c = hidden.transpose(0, 1).to(u.dtype), cell.transpose(0, 1).to(upcast_dtype(u.dtype))
            states, cells = [], []
            for step in given.unbind(0):
                i, g, f, o = torch.baddbmm(step, h, u).chunk(4, dim=-1)
                c = _clip(f.sigmoid() * c + i.sigmoid() * g.tanh(), self.cell_clip)
                h = _clip(torch.bmm((o.sigmoid() * c.tanh()).to(u.dtype), self.project), self.projection_clip)
                states.append(h)
                cells.append(c)
            return torch.stack(states, dim=2), _last(states, lengths), _last(cells, lengths)


class TaskReader(nn.Module):
    """What a task makes of the layers, with weights of its own: r, and the labels."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.mix = Mix(1 if config.mix == "top" else 1 + config.layers, normalise=config.normalise)
        self.dropout = Dropout(config.task_dropout)
        self.own = HashedWords(config.max_characters, config.own_words) if config.own_words else None
        read = 2 * config.dim + config.own_words
        self.width = 2 * config.reader_hidden or read
        self.reader = Reader("lstm", read, self.width) if config.reader_hidden else None
        self.pool = POOLINGS[config.pooling](self.width) if config.head == "classifier" else None
        self.label = nn.Linear(self.width, config.labels)  # W

    def forward(
        self,
        layers: Float[Tensor, "batch layers words features"],
        characters: Int[Tensor, "batch words characters"],
        lengths: Int[Tensor, "batch"],
    ) -> Float[Tensor, "batch words width"]:
        words = self.mix(layers)
        if self.own is not None:
            words = torch.cat((words, self.own(characters)), dim=-1)
        if self.reader is None:
            return words
        return self.reader(self.dropout(words), lengths, turning(lengths, words.shape[1]))[0]

    def logits(
        self, hidden: Float[Tensor, "batch words width"], lengths: Int[Tensor, "batch"] | None
    ) -> Float[Tensor, "batch *words labels"]:
        if self.pool is not None:
            if lengths is None:
                lengths = torch.full(hidden.shape[:1], hidden.shape[1], device=hidden.device)
            hidden = self.pool(hidden, lengths)
        return self.label(self.dropout(hidden))


def _counted(
    characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"] | None
) -> Int[Tensor, "batch"]:
    """How many words each sentence has."""
    return (characters[..., 0] != PADDING).sum(dim=1) if lengths is None else lengths


def _clip(x: Float[Tensor, "*shape"], limit: float | None) -> Float[Tensor, "*shape"]:
    return x if limit is None else x.clamp(-limit, limit)


def _last(
    steps: list[Float[Tensor, "directions batch width"]], lengths: Int[Tensor, "batch"]
) -> Float[Tensor, "batch directions width"]:
    """What each sentence has at its last place."""
    rows = torch.stack(steps).permute(2, 0, 1, 3)  # batch length directions width
    return rows.gather(1, (lengths - 1)[:, None, None, None].expand(-1, 1, *rows.shape[2:]))[:, 0]
