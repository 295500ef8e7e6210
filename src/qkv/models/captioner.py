"""Captions of pictures: the picture as the first input, or attention to all of its places.

A picture is read once, as features a_i of its places i (`qkv.nn.image_encoder`).

attention = "none"    Show and tell (Vinyals et al. 2015): the picture is what the recurrence hears first, and only then
    x_{-1} = V mean_i a_i,   x_t = E y_t,   h_t = LSTM(x_t, h_{t-1}),   p(y_{t+1}) = softmax(O h_t)

attention = "soft"    Show, attend and tell (Xu et al. 2015): each word looks at the picture anew
    h_0, c_0 = tanh(B mean_i a_i)
    z_t = b_t attend(h_{t-1}, a),   b_t = sigmoid(w . h_{t-1})              how much the picture matters for this word
    h_t = LSTM([E y_{t-1} ; z_t], h_{t-1}),   p(y_t) = softmax(O (E y_{t-1} + H h_t + Z z_t))

attention = "hard"    the same, but each word reads one place alone; estimator = "reinforce" draws it as the paper does
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from qkv.attention import SCORES, Attend, Keys, Sizes, Softmax
from qkv.attention.hard import BASELINES, ESTIMATORS
from qkv.config import require, require_known, require_meaning
from qkv.nn.dropout import Dropout
from qkv.nn.encoder_decoder import Writer
from qkv.nn.image_encoder import Convolutions, ImageEncoder, PatchTransformer
from qkv.nn.reading import alignment
from qkv.nn.recurrent import Bridge, Products, Recurrent
from qkv.types import Float, Int, Tensor

ATTENTIONS = ("soft", "hard", "sparsemax", "entmax")
SOFT = Softmax()
MOST_FILTERS = 8
LARGEST_CELL = 2**MOST_FILTERS  # pixels a side that one place can have, but for patches: each filter halves
MOST_PLACES = 2**14
WORDS = {  # the keys that take one of some words
    "encoder": ("cnn", "patches", "given"),
    "attention": ("none", *ATTENTIONS),
    "score": tuple(SCORES),
    "estimator": ESTIMATORS,
    "baseline": ("none", *BASELINES),
}
MEANT_FOR = {  # the keys that mean something only where another key has one of some values
    "filters": ("encoder", ("cnn",)),
    **dict.fromkeys(("patch", "encoder_layers", "encoder_heads"), ("encoder", ("patches",))),
    "score": ("attention", ATTENTIONS),
    "spread": ("attention", ("soft", "sparsemax", "entmax")),
    "estimator": ("attention", ("hard",)),
    **dict.fromkeys(("baseline", "entropy", "discount", "softened"), ("estimator", ("reinforce",))),
}


@dataclass(frozen=True)
class Config:
    """The sizes and terms of the model; the data set the size of the vocabulary and that of the pictures."""

    vocabulary_size: int
    channels: int = 3
    height: int = 64
    width: int = 64
    encoder: str = "cnn"  # or patches: a Transformer over them; given: pictures are features already
    filters: tuple[int, ...] = (32, 64, 128)  # of cnn: how much each convolution finds; each halves height and width
    patch: int = 8  # of patches: pixels a side
    encoder_layers: int = 4  # of patches
    encoder_heads: int = 4
    frozen: bool = False  # whether the encoder stays as it is: as `init` has brought it
    features: int = 128  # of a_i
    embedding: int = 128
    hidden: int = 256
    attention: str = "soft"
    score: str = "additive"
    estimator: str = "straight-through"  # of the gradient of hard attention: this, gumbel or reinforce
    baseline: str = "moving-average"  # of reinforce: this, learned or none
    entropy: float = 0.0  # of reinforce: the weight of a bonus for staying undecided
    discount: float = 1.0  # of reinforce: how much less each later step counts; 1 is exact, less varies less
    softened: float = 0.0  # of reinforce: the share of pictures that training reads softly; 0.5 in the paper
    spread: float = 0.0  # lambda: how much it costs not to read every place once, lambda sum_i (1 - sum_t a_ti)^2
    dropout: float = 0.1  # of embeddings and of what is said
    max_length: int = 64  # tokens of a caption

    def __post_init__(self) -> None:
        for key in ("vocabulary_size", "features", "embedding", "hidden", "max_length"):
            require(1 <= getattr(self, key) <= 2**20, f"{key} must lie between 1 and 2^20")
        for key in ("channels", "height", "width", "patch"):
            require(1 <= getattr(self, key) <= 2**13, f"{key} must lie between 1 and 8,192")
        require(1 <= len(self.filters) <= MOST_FILTERS, f"filters: between 1 and {MOST_FILTERS} convolutions")
        for found in self.filters:
            require(1 <= found <= 2**12, f"filters: a convolution finds between 1 and 4,096 features, not {found}")
        require(1 <= self.encoder_layers <= 256, "encoder_layers must lie between 1 and 256")
        require(1 <= self.encoder_heads <= 1024, "encoder_heads must lie between 1 and 1,024")
        require(0 <= self.dropout < 1, "dropout must lie in [0, 1)")
        for key in ("discount", "softened"):
            require(0 <= getattr(self, key) <= 1, f"{key} must lie in [0, 1]")
        for key in ("entropy", "spread"):
            require(0 <= getattr(self, key) < math.inf, f"{key} must be 0 or more, and finite")
        require_known(self, **WORDS)
        require_meaning(self, MEANT_FOR)
        self._check_grid()
        require(
            self.attention == "none"
            or self.score not in ("dot", "scaled_dot", "cosine")
            or self.hidden == self.features,
            f"score = {self.score!r} multiplies feature by feature, but hidden = {self.hidden} and features = "
            f"{self.features} differ: set score to bilinear",
        )

    def _check_grid(self) -> None:
        """Raise where the picture cannot be divided as the encoder divides it, or into too much to hold."""
        for key in ("height", "width"):
            side = getattr(self, key)
            what = f"patch {self.patch}" if self.encoder == "patches" else f"2^{len(self.filters)}, one 2 for a filter"
            require(side % self.cell == 0, f"{key} {side} must be a multiple of {what}")
        require(
            self.encoder != "patches" or self.features % self.encoder_heads == 0,
            f"features {self.features} must be a multiple of encoder_heads {self.encoder_heads}",
        )
        require(
            self.places <= MOST_PLACES,
            f"height and width make {self.places:,} places, more than {MOST_PLACES:,}: add filters or enlarge patch",
        )
        most = max(self.channels * self.patch**2, self.places, 4 * self.features, self.hidden, self.embedding)
        widest = max(self.features, self.hidden, self.embedding)
        require(
            widest * max(most, self.vocabulary_size) <= 2**32, "these sizes make a matrix of more than 2^32 numbers"
        )

    @property
    def cell(self) -> int:
        """How many pixels a side one place has."""
        return {"cnn": 2 ** len(self.filters), "patches": self.patch, "given": 1}[self.encoder]

    @property
    def grid(self) -> tuple[int, int]:
        """How many places there are one below the other, and side by side."""
        return self.height // self.cell, self.width // self.cell

    @property
    def places(self) -> int:
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class Memory:
    """What is known of a picture."""

    mean: Float[Tensor, "batch features"]
    keys: Float[Tensor, "batch 1 places key_features"] | None = None  # none where nothing attends to them
    values: Float[Tensor, "batch 1 places read"] | None = None  # a_i, and a one for its place


@dataclass(frozen=True)
class State:
    """What the decoder carries from token to token."""

    memory: Memory
    hidden: Float[Tensor, "batch 1 width"]  # h_t and c_t


# What is said after each of some tokens, how much was read of each place for it, and the state after the last.
Said = tuple[Float[Tensor, "batch target said"], Float[Tensor, "batch target places"], State]


class ShowAttendTell(Writer[Memory, State]):
    """A network that reads pictures, and a recurrent decoder."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = image_encoder(config)
        self.encoder.requires_grad_(not config.frozen)
        self.embed = nn.Embedding(config.vocabulary_size, config.embedding)  # E
        self.decoder = Telling(config) if config.attention == "none" else Attending(config)
        self.output = nn.Linear(self.decoder.said, config.vocabulary_size)  # O
        self.dropout = Dropout(config.dropout)

    def encode(self, images: Float[Tensor, "batch channels height width"]) -> Memory:
        """Look at the pictures."""
        return self.decoder.look(self.encoder(images))

    def start(self, memory: Memory) -> State:
        return State(memory, self.decoder.first(memory.mean))

    def advance(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        said, _, state = self.decoder(self.dropout(self.embed(tokens)), state)
        return self.output(self.dropout(said)), state

    def forward(
        self, images: Float[Tensor, "batch channels height width"], target: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target vocabulary"]:
        return self.decode(target, self.encode(images))

    def read(
        self, images: Float[Tensor, "batch channels height width"], target: Int[Tensor, "batch target"]
    ) -> tuple[Float[Tensor, "batch target vocabulary"], Float[Tensor, "batch target places"]]:
        """The logits after each token, and how much was read of each place for them: a_ti, with its gradient."""
        said, weights, _ = self.decoder(self.dropout(self.embed(target)), self.start(self.encode(images)))
        return self.output(self.dropout(said)), weights


class Telling(nn.Module):
    """h_t = LSTM(E y_t, h_{t-1}), after the picture: nothing has to be waited for, and all steps run as one call."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.said = config.hidden
        self.see = nn.Linear(config.features, config.embedding)  # V
        self.cells = Recurrent("lstm", config.embedding, config.hidden)

    def look(self, features: Float[Tensor, "batch places features"]) -> Memory:
        return Memory(features.mean(dim=1))

    def first(self, mean: Float[Tensor, "batch features"]) -> Float[Tensor, "batch 1 width"]:
        """The state after x_{-1}."""
        _, hidden = self.cells(self.see(mean)[:, None])
        return hidden

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> Said:
        h, hidden = self.cells(y, state.hidden)
        return h, h.new_zeros(*y.shape[:2], 0), replace(state, hidden=hidden)


class Attending(nn.Module):
    """z_t = b_t attend(h_{t-1}, a),   h_t = LSTM([E y_{t-1} ; z_t], h_{t-1}),   E y_{t-1} + H h_t + Z z_t."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.said, self.features, self.softened = config.embedding, config.features, config.softened
        align = alignment(
            config.attention, config.hidden, 0,
            config.estimator, config.baseline, config.entropy, config.discount,
        )  # fmt: skip
        sizes = Sizes(config.hidden, config.features, config.hidden, config.places)
        self.attend = Attend(SCORES[config.score].from_sizes(sizes), align, heads=1)
        self.cells = Recurrent("lstm", config.embedding + config.features, config.hidden)
        self.bridge = Bridge("tanh", 1, config.features, self.cells.width)  # B
        self.gate = nn.Linear(config.hidden, 1)  # w
        self.speak = nn.Linear(config.hidden + config.features, config.embedding)  # H and Z, side by side

    def look(self, features: Float[Tensor, "batch places features"]) -> Memory:
        # Beside each a_i a one for its place: what is read then says from where, whatever kernel has read it.
        place = torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
        values = torch.cat((features, place.expand(len(features), -1, -1)), dim=-1)
        return Memory(features.mean(dim=1), self.attend.keys(features[:, None]).tensor, values[:, None])

    def first(self, mean: Float[Tensor, "batch features"]) -> Float[Tensor, "batch 1 width"]:
        """h_0 and c_0."""
        return self.bridge(mean[:, None])

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> Said:
        keys, values = state.memory.keys, state.memory.values
        assert keys is not None
        assert values is not None
        cells, layers = self.cells.unroll(y), self.cells.split(state.hidden)
        gate = Products.of(self.gate, y.shape[1], y.shape[0])
        softly = None  # where drawing finds nothing yet, gradients of what a draw would read on average find the way
        if self.training and self.softened:
            softly = torch.rand(len(y), 1, device=y.device) < self.softened
        heard, weights = [], []
        for _ in range(y.shape[1]):
            h = layers[0][0]
            read = self.attend(h[:, None, None], Keys(keys), values).output.flatten(1)
            if softly is not None:
                average = self.attend(h[:, None, None], Keys(keys), values, align=SOFT).output.flatten(1)
                read = torch.where(softly, average, read)
            z, weight = read.split((self.features, values.shape[2]), dim=-1)
            z = gate(h).sigmoid() * z
            h, layers = cells(layers, z)
            heard.append(torch.cat((h, z), dim=-1))
            weights.append(weight)
        said = y + self.speak(torch.stack(heard, dim=1))
        return said, torch.stack(weights, dim=1), replace(state, hidden=self.cells.join(layers))


def image_encoder(config: Config) -> ImageEncoder:
    """The encoder that a config asks for."""
    find: nn.Module
    if config.encoder == "cnn":
        find, found = Convolutions(config.channels, config.filters), config.filters[-1]
    elif config.encoder == "patches":
        find, found = (
            PatchTransformer(
                config.channels, config.patch, config.grid, config.features, config.encoder_layers, config.encoder_heads
            ),
            config.features,
        )
    else:
        find, found = nn.Identity(), config.channels
    return ImageEncoder(find, found, config.grid, config.features, (config.channels, config.height, config.width))
