"""Image captioning: the image as the first input of the decoder, or attention over image positions.

An encoder divides the image into a grid of positions i and computes features a_i of each (`qkv.nn.encoders`).

decoder = "tell"      Show and tell (Vinyals et al. 2015): the image is the first input of the recurrence
    h_0 = LSTM(V mean_i a_i, 0)
    h_t = LSTM(E y_{t-1}, h_{t-1})
    p(y_t) = softmax(O h_t)

decoder = "attend"    Show, attend and tell (Xu et al. 2015): attention over the image at every step
    h_0, c_0 = tanh(B mean_i a_i)
    z_t = b_t sum_i alpha_ti a_i,   alpha_ti = align_i(score(h_{t-1}, a_i)),   b_t = sigmoid(w . h_{t-1})
    h_t = LSTM([E y_{t-1} ; z_t], h_{t-1})
    p(y_t) = softmax(O (E y_{t-1} + H h_t + Z z_t))

y_0 is the begin token, and c_t, the cell of the LSTM, is part of its state. align = "softmax" is the soft attention of
the paper, align = { name = "hard", estimator = "reinforce" } its hard attention, which samples one position per step in
training. Doubly stochastic attention penalizes positions whose weights do not sum to 1 over the steps. w and all
matrices except E have biases, with one for H and Z together.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import model_validator
from torch import nn

from qkv.attention import Attend, Keys, LocalMonotonic, Sizes, Softmax
from qkv.config import (
    AlignTerm,
    Config,
    ImageEncoderTerm,
    NonNegativeFloat,
    Probability,
    Rate,
    ScoreTerm,
    Size,
    Term,
    require,
    require_matrix_size,
)
from qkv.nn.encoders.image_encoder import ImageEncoder, ImageSizes
from qkv.nn.fast import Dropout, StepLinear
from qkv.nn.interfaces import Decoder
from qkv.nn.multi_head import BackendName, check_terms
from qkv.nn.rnn import Bridge, Recurrent
from qkv.nn.source_attention import append_one_hot
from qkv.registry import register
from qkv.types import Float, Int, Tensor

MAX_POSITIONS = 2**14  # of the grid of an image
SOFT_ALIGN = Softmax()  # weights of soft attention, for a fraction of the images in hard attention


class ShowAttendTellConfig(Config):
    """Sizes and terms of the model; the vocabulary and image sizes come from the data."""

    vocab_size: Size = 10000  # tokens
    channels: Size = 3  # channels of the images; encoder = "features": size of the precomputed features
    height: Size = 64  # height of the images
    width: Size = 64  # width of the images
    encoder: ImageEncoderTerm = Term("image_encoder", "cnn")  # cnn, patches (Transformer) or features (precomputed)
    frozen: bool = False  # freeze the encoder
    backbone: str = ""  # encoder = "features": name of the pretrained network; pipelines compute the features with it
    feature_dim: Size = 128  # size of a_i
    embedding_dim: Size = 128  # size of the token embeddings
    hidden_dim: Size = 256  # size of the LSTM
    decoder: Literal["attend", "tell"] = "attend"  # attention at every step, or the image as the first input
    score: ScoreTerm = Term("score", "additive")  # score of LSTM states and image positions
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    soft_fraction: Probability = 0.0  # hard attention by reinforce: share of images with soft attention in training
    doubly_stochastic: NonNegativeFloat = 0.0  # soft attention: weight of the penalty sum_i (1 - sum_t alpha_ti)^2
    dropout: Rate = 0.1  # dropout of embeddings and of the readout's input
    max_length: Size = 64  # maximum caption length in tokens
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms

    @model_validator(mode="after")
    def _check(self) -> "ShowAttendTellConfig":
        if self.decoder == "tell":  # no attention
            for key in ("score", "align", "doubly_stochastic", "soft_fraction"):
                is_default = getattr(self, key) == type(self).model_fields[key].default
                require(is_default, f"{key} does not apply to decoder = 'tell', which has no attention")
        hard = self.align.name == "hard"
        if self.soft_fraction:
            reinforce = hard and self.align.options.get("estimator") == "reinforce"
            require(reinforce, "soft_fraction applies to hard attention with estimator = 'reinforce' only")
        if self.doubly_stochastic:
            require(not hard, "doubly_stochastic applies to soft attention only, not to align = 'hard'")
        require(self.align.cls is not LocalMonotonic, "align 'local_m' does not apply to images, which have no order")
        self._check_grid()
        if self.decoder == "attend":
            check_terms(self.attention_sizes, cross_attention=True, align=self.align, score=self.score)
        return self

    def _check_grid(self) -> None:
        """Raise if the image cannot be divided into a grid, or if the grid or a matrix is too large."""
        for key in ("height", "width"):
            if key not in self.model_fields_set:
                continue  # not yet set by the data
            side = getattr(self, key)
            require(side % self.stride == 0, f"{key} {side} must be a multiple of {self.stride}, the encoder's stride")
        require(
            self.positions <= MAX_POSITIONS,
            f"the encoder divides an image into {self.positions:,} positions, more than {MAX_POSITIONS:,}: add a layer "
            "to encoder.filters, or increase encoder.patch",
        )
        self.encoder.cls.check_options(self.feature_dim, self.encoder.options)
        most = max(self.channels * self.stride**2, self.positions, 4 * self.feature_dim, self.hidden_dim)
        widest = max(self.feature_dim, self.hidden_dim, self.embedding_dim)
        require_matrix_size(widest, max(most, self.vocab_size), "feature_dim, hidden_dim or embedding_dim")

    @property
    def stride(self) -> int:
        """Side of one position in pixels."""
        return self.encoder.cls.stride(self.encoder.options)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of positions."""
        return self.height // self.stride, self.width // self.stride

    @property
    def positions(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def attention_sizes(self) -> Sizes:
        return Sizes(query=self.hidden_dim, key=self.feature_dim, hidden=self.hidden_dim, max_keys=self.positions)


@dataclass(frozen=True)
class Memory:
    """Encoded images."""

    mean: Float[Tensor, "batch features"]  # mean_i a_i
    keys: Float[Tensor, "batch 1 positions key_features"] | None = None  # a_i as projected by the score
    values: Float[Tensor, "batch 1 positions value_features"] | None = None  # [a_i ; one-hot i]; None for "tell"


@dataclass(frozen=True)
class State:
    """Decoder state between tokens."""

    memory: Memory
    hidden: Float[Tensor, "batch 1 state_dim"]  # h_t and c_t


# Input of the readout after each token, attention weights over positions, and the final state.
DecoderOutput = tuple[Float[Tensor, "batch target pre_output_dim"], Float[Tensor, "batch target positions"], State]


@register("model", "show_attend_tell")
class ShowAttendTell(Decoder[Memory, State]):
    """Image encoder and recurrent decoder."""

    config_class = ShowAttendTellConfig
    description = "image captioning with or without attention (Vinyals et al. 2015; Xu et al. 2015)"
    kind_description = "a captioner (for qkv caption)"  # in error messages about the wrong kind of model
    input_role = "image"

    def __init__(self, config: ShowAttendTellConfig) -> None:
        super().__init__()
        self.config = config
        sizes = ImageSizes(channels=config.channels, height=config.height, width=config.width, dim=config.feature_dim)
        self.encoder = ImageEncoder(config.encoder.build(sizes), sizes, config.grid)
        self.encoder.requires_grad_(not config.frozen)
        self.embed = nn.Embedding(config.vocab_size, config.embedding_dim)  # E
        self.decoder = TellDecoder(config) if config.decoder == "tell" else AttendDecoder(config)
        self.readout = nn.Linear(self.decoder.pre_output_dim, config.vocab_size)  # O
        self.dropout = Dropout(config.dropout)

    def encode(self, images: Float[Tensor, "batch channels height width"]) -> Memory:
        """Encode the images."""
        return self.decoder.precompute(self.encoder(images))

    def init_state(self, memory: Memory) -> State:
        """Return the decoder state before the first token (see `Decoder`)."""
        return State(memory, self.decoder.init_hidden(memory.mean))

    def forward_from(
        self, tokens: Int[Tensor, "batch length"], state: State
    ) -> tuple[Float[Tensor, "batch length vocabulary"], State]:
        """Return the logits after each token, and the new state."""
        output, _, state = self.decoder(self.dropout(self.embed(tokens)), state)
        return self.readout(self.dropout(output)), state

    def forward(
        self, images: Float[Tensor, "batch channels height width"], target: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Return the logits after each token of the captions."""
        return self.decode(target, self.encode(images))

    def forward_with_weights(
        self, images: Float[Tensor, "batch channels height width"], target: Int[Tensor, "batch target"]
    ) -> tuple[Float[Tensor, "batch target vocabulary"], Float[Tensor, "batch target positions"]]:
        """Return the logits after each token and the attention weights alpha_ti, both differentiable."""
        output, weights, _ = self.decoder(self.dropout(self.embed(target)), self.init_state(self.encode(images)))
        return self.readout(self.dropout(output)), weights


class TellDecoder(nn.Module):
    """The image is the first input of the recurrence, which runs over all tokens in one call."""

    def __init__(self, config: ShowAttendTellConfig) -> None:
        super().__init__()
        self.pre_output_dim = config.hidden_dim  # h_t itself is the input of the readout
        self.image_proj = nn.Linear(config.feature_dim, config.embedding_dim)  # V
        self.rnn = Recurrent("lstm", config.embedding_dim, config.hidden_dim)

    def precompute(self, features: Float[Tensor, "batch positions features"]) -> Memory:
        """Return the mean of the features."""
        return Memory(features.mean(dim=1))

    def init_hidden(self, mean: Float[Tensor, "batch features"]) -> Float[Tensor, "batch 1 state_dim"]:
        """Return h_0 and c_0."""
        _, hidden = self.rnn(self.image_proj(mean)[:, None])  # h_0 = LSTM(V mean_i a_i, 0)
        return hidden

    def forward(self, y: Float[Tensor, "batch target embedding_dim"], state: State) -> DecoderOutput:
        h, hidden = self.rnn(y, state.hidden)  # h_t = LSTM(E y_{t-1}, h_{t-1})
        return h, h.new_zeros(*y.shape[:2], 0), replace(state, hidden=hidden)


class AttendDecoder(nn.Module):
    """Attention over the image at every step, before the recurrence."""

    def __init__(self, config: ShowAttendTellConfig) -> None:
        super().__init__()
        self.pre_output_dim, self.feature_dim = config.embedding_dim, config.feature_dim
        self.soft_fraction = config.soft_fraction
        align, score = config.align.build(config.attention_sizes), config.score.build(config.attention_sizes)
        self.attend = Attend(score, align, backend=config.backend, heads=1)
        self.rnn = Recurrent("lstm", config.embedding_dim + config.feature_dim, config.hidden_dim)
        self.bridge = Bridge("tanh", (1, config.feature_dim), (1, self.rnn.state_dim))  # B
        self.gate = nn.Linear(config.hidden_dim, 1)  # w
        self.pre_output = nn.Linear(config.hidden_dim + config.feature_dim, config.embedding_dim)  # [H Z]

    def precompute(self, features: Float[Tensor, "batch positions features"]) -> Memory:
        """Return the mean, the keys and the values of the features.

        The value of position i is [a_i ; one-hot i], so that the attention output is [sum_i alpha_ti a_i ; alpha_t]:
        the training loss needs the weights alpha_t, and fast attention kernels return the output only.
        """
        values, mean = append_one_hot(features[:, None]), features.mean(dim=1)
        keys = self.attend.keys(features[:, None]).tensor  # projected by the score, once for all steps
        return Memory(mean, keys, values)

    def init_hidden(self, mean: Float[Tensor, "batch features"]) -> Float[Tensor, "batch 1 state_dim"]:
        """Return h_0 and c_0."""
        return self.bridge(mean[:, None])

    def forward(self, y: Float[Tensor, "batch target embedding_dim"], state: State) -> DecoderOutput:
        assert state.memory.keys is not None
        assert state.memory.values is not None
        keys, values = Keys(state.memory.keys), state.memory.values  # Keys: already projected by the score
        rnn_step = self.rnn.unroll(y)  # one step of the LSTM, with the products W y of all steps computed here
        gate = StepLinear.from_linear(self.gate, y.shape[1], y.shape[0])  # the same layer, faster step by step
        layers = self.rnn.unpack_state(state.hidden)
        use_soft = None  # rows with soft attention: their gradients help before sampling finds useful positions
        if self.training and self.soft_fraction:
            use_soft = torch.rand(len(y), 1, device=y.device) < self.soft_fraction
        pre_output_inputs, weights = [], []
        for _ in range(y.shape[1]):
            h = layers[0][0]  # h_{t-1}
            query = h[:, None, None]
            output = self.attend(query, keys, values).output.flatten(1)
            if use_soft is not None:
                soft_output = self.attend(query, keys, values, align=SOFT_ALIGN).output.flatten(1)
                output = torch.where(use_soft, soft_output, output)
            z, alpha = output.split((self.feature_dim, values.shape[2]), dim=-1)  # sum_i alpha_ti a_i, and alpha_t
            z = gate(h).sigmoid() * z  # z_t = b_t sum_i alpha_ti a_i
            h, layers = rnn_step(layers, z)  # h_t = LSTM([E y_{t-1} ; z_t], h_{t-1})
            pre_output_inputs.append(torch.cat((h, z), dim=-1))
            weights.append(alpha)
        pre_output = y + self.pre_output(torch.stack(pre_output_inputs, dim=1))  # E y_{t-1} + H h_t + Z z_t
        return pre_output, torch.stack(weights, dim=1), replace(state, hidden=self.rnn.pack_state(layers))
