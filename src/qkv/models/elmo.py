"""Deep contextualized word representations (Peters et al. 2018) from a bidirectional language model.

    x_t = P H(max_k relu(conv(e_t))_k)         conv over the characters e_t of word t, highway layers H, projection P
    H(u) = m * relu(T u) + (1 - m) * u,   m = sigmoid(G u)                                  (Srivastava et al. 2015)
    i, f, o = sigmoid(W y^{j-1}_t + U h_{t-1}),   g = tanh(W y^{j-1}_t + U h_{t-1})         LSTM layer j, y^0 = x
    c_t = clip(f * c_{t-1} + i * g),   h_t = clip(R (o * tanh(c_t)))                        (Sak et al. 2014)
    y^1 = h^1,   y^j = h^j + y^{j-1}           for each direction, with separate weights; backward, t - 1 is t + 1
    p(w_{t+1} | w_1 .. w_t) = softmax(O y^L_t),   p(w_t | w_{t+1} .. w_n) = softmax(O y^L_{t+1})   forward, backward
    ELMo_t = gamma * sum_j s_j [forward y^j_t ; backward y^j_t],   s = softmax(a)

with an optional head:

    language_model   O y^L                      the next and the previous word
    tagger           Q r_t                      the label of each word; r = [ELMo ; v], or a bidirectional LSTM on it
    classifier       Q pool(r_1 .. r_n)         the label of the text; pool: the mean, or attention (`qkv.nn.pooling`)

The heads with labels, tagger and classifier, have gamma and a, and optionally word embeddings v_t and the LSTM. Without
a label head, the output is the mean over j of [forward y^j ; backward y^j]. With mix = "top", only y^L is used.

* is the elementwise product, and max_k is over the positions of the characters. Every matrix but R has a bias, and 1 is
added to that of f. In training, the inputs y^{j-1} of the layers and y^L of O are after dropout. Both directions share
the character encoder and the readout O. Every sentence is wrapped in begin and end words; the network adds and removes
them. The weights have the layout of the released files, with the gates in the order i, g, f, o.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, Strict, model_validator
from torch import nn
from torch.nn import functional as F

from qkv.attention.precision import upcast_dtype
from qkv.config import Config, Count, PositiveFloat, Rate, Size, SizeList, StringList, require, require_names
from qkv.errors import InputError, ShapeError
from qkv.nn.encoders.char_cnn import PADDING, CharCNN, HashEmbedding
from qkv.nn.fast import Dropout
from qkv.nn.interfaces import TextEncoder
from qkv.nn.pooling import POOLINGS, full_lengths, valid_positions
from qkv.nn.projected_lstm import scan
from qkv.nn.rnn import BiRNN, gather_time, reverse_index
from qkv.registry import register
from qkv.types import Float, Int, Tensor

# Character ids of released models: a byte has its value plus 1. Words are filled up with WORD_PADDING; the words after
# the end of a sentence consist of PADDING, which is 0.
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, WORD_PADDING = range(257, 262)
LABEL_HEADS = ("tagger", "classifier")
PRESETS: dict[str, dict[str, Any]] = {
    "small": {"dim": 128, "hidden_dim": 1024, "highway_layers": 1},
    "medium": {"dim": 256, "hidden_dim": 2048, "highway_layers": 1},
    "original": {"dim": 512, "hidden_dim": 4096, "highway_layers": 2},
}
RELEASED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
Filters = Annotated[tuple[SizeList, ...], Strict(False)]  # Strict(False): accept the lists of TOML and JSON
OptionalSize = Annotated[int, Field(ge=0, le=2**24)]
Steps = Float[Tensor, "directions length batch dim"]  # of all words, including begin and end


class ElmoConfig(Config):
    """Sizes of the model, by default those of the original release."""

    vocab_size: Size = 793_471  # number of words that a language model predicts; inputs are open-vocabulary
    head: Literal["language_model", "tagger", "classifier"] | None = None  # head of the network; set by the task
    labels: Size = 2  # number of labels; set by the data
    label_names: StringList = ()  # names of the labels; set by the data
    max_length: Size = 512  # maximum number of words per text in a task; not a limit of the model
    max_characters: Annotated[int, Field(ge=3, le=2**20)] = 50  # length of a word, including begin and end markers
    character_dim: Size = 16  # size of the character embeddings
    filters: Filters = RELEASED_FILTERS  # kernel width and number of features of each convolution
    activation: Literal["relu", "tanh"] = "relu"  # activation of the convolutions
    normalize_words: bool = False  # layer-normalize the convolution features; not in released models
    highway_layers: Annotated[int, Field(ge=0, le=1024)] = 2  # number of highway layers
    dim: Size = 512  # size of x, and of h in each direction
    hidden_dim: Size = 4096  # size of c
    layers: Count = 2  # number of LSTM layers
    skip_connections: bool = True  # add the input of a layer to its output, from the second layer on
    cell_clip: PositiveFloat | None = 3.0  # clip c to [-cell_clip, cell_clip]
    projection_clip: PositiveFloat | None = 3.0  # clip h to [-projection_clip, projection_clip]
    dropout: Rate = 0.1  # dropout of the inputs of the layers and of the readout O
    frozen: bool = False  # train only the head of a tagger or classifier
    mix: Literal["all", "top"] = "all"  # layers that ELMo_t mixes
    normalize_layers: bool = False  # layer-normalize the layers before mixing
    task_embedding_dim: OptionalSize = 0  # tagger or classifier: size of the word embeddings v_t; 0: none
    task_hidden_dim: OptionalSize = 0  # tagger or classifier: size of the LSTM in each direction; 0: none
    pooling: Literal["mean", "attention"] = "mean"  # pooling of a classifier
    task_dropout: Rate = 0.1  # tagger or classifier: dropout of the inputs of the LSTM and of Q

    @model_validator(mode="after")
    def check_head(self) -> "ElmoConfig":
        pairs = 1 <= len(self.filters) <= 1024 and all(len(pair) == 2 for pair in self.filters)
        require(pairs, "filters must be 1 to 1,024 pairs of kernel width and number of features")
        widths, features = zip(*self.filters, strict=True)
        require(max(widths) <= self.max_characters, f"filters are wider than max_characters = {self.max_characters}")
        require(sum(features) <= 2**24, "filters have too many features in total")
        require_names(self.label_names, self.labels)
        if self.head not in LABEL_HEADS:
            for name in ("frozen", "task_embedding_dim", "task_hidden_dim"):
                require(not getattr(self, name), f"{name} needs head tagger or classifier")
        return self


@dataclass(frozen=True)
class State:
    """State of the LSTM layers, from which the next sentence can start."""

    hidden: Float[Tensor, "batch layers directions dim"]  # h after the end word (forward) or begin word (backward)
    cell: Float[Tensor, "batch layers directions hidden"]  # c at the same words


@register("model", "elmo")
class Elmo(TextEncoder):
    """Character-based bidirectional language model, with an optional head."""

    config_class = ElmoConfig
    presets: ClassVar = PRESETS
    description = "ELMo (Peters et al. 2018): word representations from a bidirectional language model"

    markers: Int[Tensor, "2 characters"]  # the begin and end words

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = config
        self.word_encoder = CharCNN(
            config.dim, config.character_dim, config.filters, config.highway_layers, config.activation,
            normalize=config.normalize_words,
        )  # fmt: skip
        self.layers = nn.ModuleList(ProjectedBiLSTM(config) for _ in range(config.layers))
        self.dropout = Dropout(0.0 if config.frozen else config.dropout)
        self.readout = nn.Linear(config.dim, config.vocab_size) if config.head == "language_model" else None  # O
        self.task = LabelHead(config) if config.head in LABEL_HEADS else None  # the name is in checkpoints
        if config.frozen:
            self.word_encoder.requires_grad_(False)
            self.layers.requires_grad_(False)
        padding = [WORD_PADDING] * (config.max_characters - 3)
        markers = [[BEGIN_WORD, marker, END_WORD, *padding] for marker in (BEGIN_SENTENCE, END_SENTENCE)]
        self.register_buffer("markers", torch.tensor(markers), persistent=False)

    def forward(
        self,
        tokens: Int[Tensor, "batch words characters"],
        segments: Int[Tensor, "batch words"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch words features"]:
        """Return r of each word or, without labels, the mean of the layers; words of zeros in `tokens` are padding."""
        if segments is not None:
            raise InputError("ELMo does not take segments")
        lengths = _lengths(tokens, lengths)
        layers = self.representations(tokens, lengths)[:, -1 if self.config.mix == "top" else 0 :]
        return layers.mean(dim=1) if self.task is None else self.task(layers, tokens, lengths)

    def logits(
        self, hidden: Float[Tensor, "batch words features"], lengths: Int[Tensor, "batch"] | None = None
    ) -> Float[Tensor, "batch *words labels"]:
        """Return the head's logits per word or per text; if `lengths` is omitted, rows are assumed to be unpadded."""
        if self.task is None:
            raise InputError(f"this ELMo has no label head: build it with head {' or '.join(LABEL_HEADS)}")
        return self.task.logits(hidden, full_lengths(hidden) if lengths is None else lengths)

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
        layers, _ = self.representations_from(characters, self.init_state(characters.shape[0]), lengths)
        return layers

    def init_state(self, batch: int) -> State:
        """Return the state before the first sentence."""
        config, weight = self.config, self.word_encoder.project.weight
        cell = weight.new_zeros(batch, config.layers, 2, config.hidden_dim, dtype=upcast_dtype(weight.dtype))
        return State(weight.new_zeros(batch, config.layers, 2, config.dim), cell)

    def representations_from(
        self,
        characters: Int[Tensor, "batch words characters"],
        state: State,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch layers words features"], State]:
        """Return y^0 to y^L of each word, starting from the state after the previous sentence, and the new state.

        Released models were trained on consecutive sentences. An empty sentence does not change the state.
        """
        lengths = _lengths(characters, lengths)
        x, layers, reverse, new_state = self._run(characters, lengths, state)
        forward = torch.stack([x, *(y[0] for y in layers)], dim=2)  # length batch layers dim
        backward = torch.stack([x, *(gather_time(y[1], reverse, dim=0) for y in layers)], dim=2)
        joined = torch.cat((forward, backward), dim=-1)[1:-1].permute(1, 2, 0, 3)  # without begin and end
        joined = joined.masked_fill(~valid_positions(characters, lengths)[:, None, :, None], 0.0)
        nonempty = (lengths > 0)[:, None, None, None]
        hidden = torch.where(nonempty, new_state.hidden, state.hidden)
        return joined, State(hidden, torch.where(nonempty, new_state.cell, state.cell))

    def bilm_logits(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"] | None = None
    ) -> tuple[Float[Tensor, "batch targets vocabulary"], Float[Tensor, "batch targets vocabulary"]]:
        """Return the logits of both language models (see `bilm_hidden`)."""
        forward, backward = self.bilm_hidden(characters, lengths)
        assert self.readout is not None
        return self.readout(forward), self.readout(backward)

    def bilm_hidden(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"] | None = None
    ) -> tuple[Float[Tensor, "batch targets dim"], Float[Tensor, "batch targets dim"]]:
        """Return the inputs of the readout for both language models, with w_0 = begin and w_{n+1} = end:

        forward[:, t] to predict w_{t+1} from w_0 .. w_t, and backward[:, t] to predict w_t from w_{t+1} .. w_{n+1}, for
        t = 0 .. n.
        """
        if self.readout is None:
            raise InputError("this ELMo predicts no words: build it with head language_model")
        state = self.init_state(characters.shape[0])
        _, layers, reverse, _ = self._run(characters, _lengths(characters, lengths), state)
        forward, backward = self.dropout(layers[-1]).unbind(0)
        return forward[:-1].transpose(0, 1), gather_time(backward, reverse, dim=0)[1:].transpose(0, 1)

    def _run(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"], state: State
    ) -> tuple[Float[Tensor, "length batch dim"], list[Steps], Int[Tensor, "length batch"], State]:
        """Return x, y^1 to y^L in the order of each direction, indices that reverse it, and the new state."""
        x = self.word_encoder(self._add_markers(characters, lengths).transpose(0, 1))
        # The backward direction runs over each sentence reversed, so that padding comes last in both.
        lengths = lengths + 2
        reverse = reverse_index(lengths, len(x)).t()
        y = torch.stack((x, gather_time(x, reverse, dim=0)))
        layers, states = [], []
        for number, layer in enumerate(self.layers):
            y = self.dropout(y)
            h, *last = layer(y, lengths, state.hidden[:, number], state.cell[:, number])
            y = h + y if number and self.config.skip_connections else h
            layers.append(y)
            states.append(last)
        return x, layers, reverse, State(*(torch.stack(part, dim=1) for part in zip(*states, strict=True)))

    def _add_markers(
        self, characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"]
    ) -> Int[Tensor, "batch length characters"]:
        begin, end = self.markers.to(characters.dtype)
        if characters.shape[2] != len(begin):
            raise ShapeError(f"expected words of {len(begin)} characters, got {characters.shape[2]}")
        position = torch.arange(characters.shape[1] + 2, device=characters.device)[None, :, None]
        last = lengths[:, None, None] + 1
        words = F.pad(characters, (0, 0, 1, 1), value=PADDING).masked_fill(position > last, PADDING)
        return torch.where(position == 0, begin, torch.where(position == last, end, words))


class ProjectedBiLSTM(nn.Module):
    """LSTM with projection in both directions; `scan` runs both over all words."""

    forget_bias: Tensor

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.cell_clip, self.projection_clip = config.cell_clip, config.projection_clip
        hidden = config.hidden_dim
        self.gates = nn.Parameter(torch.empty(2, 2 * config.dim, 4 * hidden))  # W and U of i, g, f and o
        self.bias = nn.Parameter(torch.zeros(2, 4 * hidden))  # one for W and U together
        self.project = nn.Parameter(torch.empty(2, hidden, config.dim))  # R
        for weight in (self.gates, self.project):
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)
        forget_bias = F.one_hot(torch.tensor(2), 4).float().repeat_interleave(hidden)  # 1 (Jozefowicz et al. 2015)
        self.register_buffer("forget_bias", forget_bias, persistent=False)

    def forward(
        self,
        x: Steps,
        lengths: Int[Tensor, "batch"],
        hidden: Float[Tensor, "batch directions dim"],
        cell: Float[Tensor, "batch directions hidden"],
    ) -> tuple[Steps, Float[Tensor, "batch directions dim"], Float[Tensor, "batch directions hidden"]]:
        """Return h for all words in the order of each direction, and h and c after its last word."""
        w, u = self.gates.chunk(2, dim=1)
        inputs = torch.bmm(x.flatten(1, 2), w).unflatten(1, x.shape[1:3])  # all steps at once
        states, cells = scan(
            inputs.transpose(0, 1), self.bias + self.forget_bias, hidden.transpose(0, 1), cell.transpose(0, 1), u,
            self.project, self.cell_clip, self.projection_clip,
        )  # fmt: skip
        return states.transpose(0, 1), _last(states, lengths), _last(cells, lengths)


class ScalarMix(nn.Module):
    """ELMo = gamma * sum_j s_j y^j,   s = softmax(a); each y^j is layer-normalized first if `normalize`."""

    def __init__(self, layers: int, *, normalize: bool = False) -> None:
        super().__init__()
        self.normalize = normalize
        self.weights = nn.Parameter(torch.zeros(layers))  # a: initially the mean
        self.scale = nn.Parameter(torch.ones(()))  # gamma

    def forward(self, layers: Float[Tensor, "batch layers words features"]) -> Float[Tensor, "batch words features"]:
        layers = F.layer_norm(layers, layers.shape[-1:]) if self.normalize else layers
        return self.scale * torch.einsum("l,blwf->bwf", torch.softmax(self.weights, dim=0), layers)


class LabelHead(nn.Module):
    """r from the layers, and the logits of the labels. v is looked up by a hash of the word: no vocabulary needed."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        embedding_dim, hidden = config.task_embedding_dim, config.task_hidden_dim
        self.mix = ScalarMix(1 if config.mix == "top" else 1 + config.layers, normalize=config.normalize_layers)
        self.dropout = Dropout(config.task_dropout)
        self.word_embedding = HashEmbedding(config.max_characters, embedding_dim) if embedding_dim else None  # v
        inputs = 2 * config.dim + embedding_dim
        self.width = 2 * hidden or inputs
        self.rnn = BiRNN("lstm", inputs, self.width) if hidden else None
        self.pool = POOLINGS[config.pooling](self.width) if config.head == "classifier" else None
        self.label = nn.Linear(self.width, config.labels)  # Q

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
        self, hidden: Float[Tensor, "batch words width"], lengths: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *words labels"]:
        return self.label(self.dropout(hidden if self.pool is None else self.pool(hidden, lengths)))


def _lengths(
    characters: Int[Tensor, "batch words characters"], lengths: Int[Tensor, "batch"] | None
) -> Int[Tensor, "batch"]:
    """Number of words of each sentence."""
    return (characters[..., 0] != PADDING).sum(dim=1) if lengths is None else lengths


def _last(
    steps: Float[Tensor, "length directions batch width"], lengths: Int[Tensor, "batch"]
) -> Float[Tensor, "batch directions width"]:
    """Return the step at the last position of each sentence."""
    rows = steps.permute(2, 0, 1, 3)  # batch length directions width
    return rows.gather(1, (lengths - 1)[:, None, None, None].expand(-1, 1, *rows.shape[2:]))[:, 0]
