"""Image captioning: the image as the first input of the decoder, or attention over image positions.

The image is encoded once as features a_i of its positions i (`qkv.nn.image_encoder`).

attention = "none"    Show and tell (Vinyals et al. 2015): the image is the first input of the recurrence
    x_{-1} = V mean_i a_i,   x_t = E y_t,   h_t = LSTM(x_t, h_{t-1}),   p(y_{t+1}) = softmax(O h_t)

attention = "soft"    Show, attend and tell (Xu et al. 2015): attention over the image at every step
    h_0, c_0 = tanh(B mean_i a_i)
    z_t = b_t attend(h_{t-1}, a),   b_t = sigmoid(w . h_{t-1})              a gate on the context
    h_t = LSTM([E y_{t-1} ; z_t], h_{t-1}),   p(y_t) = softmax(O (E y_{t-1} + H h_t + Z z_t))

attention = "hard"    the same with one position per step; estimator = "reinforce" samples it as in the paper
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from qkv.attention import SCORES, Attend, Keys, Sizes, Softmax, build_score
from qkv.attention.hard import BASELINES, ESTIMATORS
from qkv.config import require, require_known, require_meaning
from qkv.nn.dropout import Dropout
from qkv.nn.image_encoder import Convolutions, ImageEncoder, PatchTransformer
from qkv.nn.interfaces import Decoder
from qkv.nn.rnn import Bridge, Recurrent, StepLinear
from qkv.nn.source_attention import build_alignment
from qkv.registry import register
from qkv.types import Float, Int, Tensor

ATTENTIONS = ("soft", "hard", "sparsemax", "entmax")
SOFT = Softmax()
MAX_FILTERS = 8
MAX_STRIDE = 2**MAX_FILTERS  # of a CNN in pixels: each filter halves the resolution
MAX_POSITIONS = 2**14
CHOICES = {  # allowed values of string options
    "encoder": ("cnn", "patches", "given"),
    "attention": ("none", *ATTENTIONS),
    "score": tuple(SCORES),
    "estimator": ESTIMATORS,
    "baseline": ("none", *BASELINES),
}
APPLIES_WHEN = {  # options that only apply for certain values of another option
    "filters": ("encoder", ("cnn",)),
    **dict.fromkeys(("patch", "encoder_layers", "encoder_heads"), ("encoder", ("patches",))),
    "score": ("attention", ATTENTIONS),
    "spread": ("attention", ("soft", "sparsemax", "entmax")),
    "estimator": ("attention", ("hard",)),
    **dict.fromkeys(("baseline", "entropy", "discount", "softened"), ("estimator", ("reinforce",))),
}


@dataclass(frozen=True)
class Config:
    """Sizes and terms of the model; the vocabulary and image sizes come from the data."""

    vocabulary_size: int
    channels: int = 3
    height: int = 64
    width: int = 64
    encoder: str = "cnn"  # cnn, patches (Transformer), or given (inputs are features)
    filters: tuple[int, ...] = (32, 64, 128)  # of cnn: channels per layer; each halves height and width
    patch: int = 8  # of patches: side in pixels
    encoder_layers: int = 4  # of patches
    encoder_heads: int = 4
    frozen: bool = False  # freeze the encoder
    features: int = 128  # of a_i
    embedding: int = 128
    hidden: int = 256
    attention: str = "soft"
    score: str = "additive"
    estimator: str = "straight-through"  # of hard attention: straight-through, gumbel or reinforce
    baseline: str = "moving-average"  # of reinforce: moving-average, learned or none
    entropy: float = 0.0  # of reinforce: weight of the entropy bonus
    discount: float = 1.0  # of reinforce: reward discount; below 1 trades bias for variance
    softened: float = 0.0  # of reinforce: share of images with soft attention in training; 0.5 in the paper
    spread: float = 0.0  # weight lambda of the penalty sum_i (1 - sum_t a_ti)^2
    dropout: float = 0.1  # of embeddings and of the output layer's input
    max_length: int = 64  # maximum caption length in tokens

    def __post_init__(self) -> None:
        for key in ("vocabulary_size", "features", "embedding", "hidden", "max_length"):
            require(1 <= getattr(self, key) <= 2**20, f"{key} must be between 1 and 2^20")
        for key in ("channels", "height", "width", "patch"):
            require(1 <= getattr(self, key) <= 2**13, f"{key} must be between 1 and 8,192")
        require(1 <= len(self.filters) <= MAX_FILTERS, f"filters must have between 1 and {MAX_FILTERS} entries")
        for channels in self.filters:
            require(1 <= channels <= 2**12, f"filters must be between 1 and 4,096, not {channels}")
        require(1 <= self.encoder_layers <= 256, "encoder_layers must be between 1 and 256")
        require(1 <= self.encoder_heads <= 1024, "encoder_heads must be between 1 and 1,024")
        require(0 <= self.dropout < 1, "dropout must be in [0, 1)")
        for key in ("discount", "softened"):
            require(0 <= getattr(self, key) <= 1, f"{key} must be in [0, 1]")
        for key in ("entropy", "spread"):
            require(0 <= getattr(self, key) < math.inf, f"{key} must be finite and not negative")
        require_known(self, **CHOICES)
        require_meaning(self, APPLIES_WHEN)
        self._check_grid()
        require(
            self.attention == "none"
            or self.score not in ("dot", "scaled_dot", "cosine")
            or self.hidden == self.features,
            f"score = {self.score!r} needs equal widths, but hidden = {self.hidden} and features = "
            f"{self.features} differ: set score to bilinear",
        )

    def _check_grid(self) -> None:
        """Raise if the image cannot be divided into a grid, or if the grid or a matrix is too large."""
        for key in ("height", "width"):
            side = getattr(self, key)
            factor = f"patch {self.patch}" if self.encoder == "patches" else f"2^{len(self.filters)} (filters)"
            require(side % self.stride == 0, f"{key} {side} must be a multiple of {factor}")
        require(
            self.encoder != "patches" or self.features % self.encoder_heads == 0,
            f"features {self.features} must be a multiple of encoder_heads {self.encoder_heads}",
        )
        require(
            self.positions <= MAX_POSITIONS,
            f"{self.positions:,} positions are more than {MAX_POSITIONS:,}: add filters, or enlarge patch",
        )
        most = max(self.channels * self.patch**2, self.positions, 4 * self.features, self.hidden, self.embedding)
        widest = max(self.features, self.hidden, self.embedding)
        require(
            widest * max(most, self.vocabulary_size) <= 2**32, "these sizes give a matrix of more than 2^32 elements"
        )

    @property
    def stride(self) -> int:
        """Side of one position in pixels."""
        return {"cnn": 2 ** len(self.filters), "patches": self.patch, "given": 1}[self.encoder]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of positions."""
        return self.height // self.stride, self.width // self.stride

    @property
    def positions(self) -> int:
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class Memory:
    """Encoded images."""

    mean: Float[Tensor, "batch features"]
    keys: Float[Tensor, "batch 1 positions key_features"] | None = None  # None without attention
    values: Float[Tensor, "batch 1 positions value_features"] | None = None  # a_i, and a one-hot of its position


@dataclass(frozen=True)
class State:
    """Decoder state between tokens."""

    memory: Memory
    hidden: Float[Tensor, "batch 1 width"]  # h_t and c_t


# Readout after each token, attention weights over positions, and the final state.
DecoderOutput = tuple[Float[Tensor, "batch target readout_dim"], Float[Tensor, "batch target positions"], State]


@register("model", "captioner")
class ShowAttendTell(Decoder[Memory, State]):
    """Image encoder and recurrent decoder."""

    config_class = Config
    kind_description = "a captioner (for qkv caption)"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = build_image_encoder(config)
        self.encoder.requires_grad_(not config.frozen)
        self.embed = nn.Embedding(config.vocabulary_size, config.embedding)  # E
        self.decoder = ImageFirstDecoder(config) if config.attention == "none" else AttentionDecoder(config)
        self.output = nn.Linear(self.decoder.readout_dim, config.vocabulary_size)  # O
        self.dropout = Dropout(config.dropout)

    def encode(self, images: Float[Tensor, "batch channels height width"]) -> Memory:
        """Encode the images."""
        return self.decoder.precompute(self.encoder(images))

    def init_state(self, memory: Memory) -> State:
        return State(memory, self.decoder.init_hidden(memory.mean))

    def advance(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        output, _, state = self.decoder(self.dropout(self.embed(tokens)), state)
        return self.output(self.dropout(output)), state

    def forward(
        self, images: Float[Tensor, "batch channels height width"], target: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target vocabulary"]:
        return self.decode(target, self.encode(images))

    def forward_with_weights(
        self, images: Float[Tensor, "batch channels height width"], target: Int[Tensor, "batch target"]
    ) -> tuple[Float[Tensor, "batch target vocabulary"], Float[Tensor, "batch target positions"]]:
        """Return the logits after each token and the attention weights a_ti, both differentiable."""
        output, weights, _ = self.decoder(self.dropout(self.embed(target)), self.init_state(self.encode(images)))
        return self.output(self.dropout(output)), weights


class ImageFirstDecoder(nn.Module):
    """h_t = LSTM(E y_t, h_{t-1}), started with the image, with all steps in one call."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.readout_dim = config.hidden
        self.image_proj = nn.Linear(config.features, config.embedding)  # V
        self.cells = Recurrent("lstm", config.embedding, config.hidden)

    def precompute(self, features: Float[Tensor, "batch positions features"]) -> Memory:
        return Memory(features.mean(dim=1))

    def init_hidden(self, mean: Float[Tensor, "batch features"]) -> Float[Tensor, "batch 1 width"]:
        """Return the state after x_{-1}."""
        _, hidden = self.cells(self.image_proj(mean)[:, None])
        return hidden

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> DecoderOutput:
        h, hidden = self.cells(y, state.hidden)
        return h, h.new_zeros(*y.shape[:2], 0), replace(state, hidden=hidden)


class AttentionDecoder(nn.Module):
    """z_t = b_t attend(h_{t-1}, a),   h_t = LSTM([E y_{t-1} ; z_t], h_{t-1}),   E y_{t-1} + H h_t + Z z_t."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.readout_dim, self.features, self.softened = config.embedding, config.features, config.softened
        align = build_alignment(
            config.attention, config.hidden, 0,
            config.estimator, config.baseline, config.entropy, config.discount,
        )  # fmt: skip
        sizes = Sizes(config.hidden, config.features, config.hidden, config.positions)
        self.attend = Attend(build_score(config.score, sizes), align, heads=1)
        self.cells = Recurrent("lstm", config.embedding + config.features, config.hidden)
        self.bridge = Bridge("tanh", 1, config.features, self.cells.width)  # B
        self.gate = nn.Linear(config.hidden, 1)  # w
        self.readout = nn.Linear(config.hidden + config.features, config.embedding)  # H and Z, concatenated

    def precompute(self, features: Float[Tensor, "batch positions features"]) -> Memory:
        # Append one-hot positions to the values, so that any kernel also returns the weights.
        positions = torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
        values = torch.cat((features, positions.expand(len(features), -1, -1)), dim=-1)
        return Memory(features.mean(dim=1), self.attend.keys(features[:, None]).tensor, values[:, None])

    def init_hidden(self, mean: Float[Tensor, "batch features"]) -> Float[Tensor, "batch 1 width"]:
        """Return h_0 and c_0."""
        return self.bridge(mean[:, None])

    def forward(self, y: Float[Tensor, "batch target embedding"], state: State) -> DecoderOutput:
        keys, values = state.memory.keys, state.memory.values
        assert keys is not None
        assert values is not None
        cells, layers = self.cells.unroll(y), self.cells.split(state.hidden)
        gate = StepLinear.from_linear(self.gate, y.shape[1], y.shape[0])
        soft = None  # rows with soft attention: their gradients help before sampling finds useful positions
        if self.training and self.softened:
            soft = torch.rand(len(y), 1, device=y.device) < self.softened
        readout_inputs, weights = [], []
        for _ in range(y.shape[1]):
            h = layers[0][0]
            output = self.attend(h[:, None, None], Keys(keys), values).output.flatten(1)
            if soft is not None:
                average = self.attend(h[:, None, None], Keys(keys), values, align=SOFT).output.flatten(1)
                output = torch.where(soft, average, output)
            z, weight = output.split((self.features, values.shape[2]), dim=-1)
            z = gate(h).sigmoid() * z
            h, layers = cells(layers, z)
            readout_inputs.append(torch.cat((h, z), dim=-1))
            weights.append(weight)
        readout = y + self.readout(torch.stack(readout_inputs, dim=1))
        return readout, torch.stack(weights, dim=1), replace(state, hidden=self.cells.join(layers))


def build_image_encoder(config: Config) -> ImageEncoder:
    """Build the image encoder for a config."""
    backbone: nn.Module
    if config.encoder == "cnn":
        backbone, backbone_dim = Convolutions(config.channels, config.filters), config.filters[-1]
    elif config.encoder == "patches":
        backbone, backbone_dim = (
            PatchTransformer(
                config.channels, config.patch, config.grid, config.features, config.encoder_layers, config.encoder_heads
            ),
            config.features,
        )
    else:
        backbone, backbone_dim = nn.Identity(), config.channels
    return ImageEncoder(
        backbone, backbone_dim, config.grid, config.features, (config.channels, config.height, config.width)
    )
