"""SNAIL, a simple neural attentive meta-learner (Mishra, Rohaninejad, Chen and Abbeel 2018).

An episode is one sequence: temporal convolutions aggregate the past of each position, and attention selects from it.
Each block concatenates its output to its input, so that later blocks receive the outputs of all earlier ones.

    [q_t ; k_t ; v_t] = W x_t + b                                                            query, key and value
    Attention(x)_t   = [x_t ; sum_{s <= t} a_ts v_s],   a_t = softmax_{s <= t}(q_t . k_s / sqrt(d))
    Dense_r(x)_t     = [x_t ; tanh(f_t) * sigmoid(g_t)],   [f_t ; g_t] = W [x_{t-r} ; x_t] + b      with dilation r
    Convolution(x)   = Dense_{2^n}(... Dense_2(Dense_1(x))),   the smallest n with 2^{n+1} >= the length of an episode
    h                = Attention(Convolution(Attention(Convolution(Attention(x)))))
    y_t              = W h_t + b

d is the size of q and k, and * is the elementwise product. The classes are `AttentionBlock`, `DenseBlock` and
`TemporalConvolution`. Every attention block, every dense block and the readout y have their own W and b. By default,
few-shot classification has three attention blocks, as in the equation of h, and a policy has two.

Few-shot classification: x_t = [LN(c(image_t) - mean c) ; one-hot label], with c a CNN trained jointly and LN layer
normalization. The last image has zeros instead of a label, and its y are the logits of its class. The mean is over the
labeled images of an episode. Without subtracting it, the scores would be dominated by what all images have in common.
(The paper uses batch normalization; see `ImageEmbedding`.)

Reinforcement learning: x_t = [one-hot last action ; its reward ; 1], zeros in the first step, which has no last action,
and y_t are the logits of the next action and the expected return.
"""

import torch
from pydantic import model_validator
from torch import nn
from torch.nn import functional as F

from qkv.attention import Attend, Causal, Sizes
from qkv.config import AlignTerm, Config, Count, ScoreTerm, Size, SizeList, Term, require
from qkv.errors import ShapeError
from qkv.nn.interfaces import Model
from qkv.nn.multi_head import BackendName, check_terms
from qkv.registry import register
from qkv.types import Float, Int, Tensor


class TrunkConfig(Config):
    """Sizes and terms of the trunk: the attention blocks and temporal convolutions that both models share."""

    key_dims: SizeList = (64, 256, 512)  # key size d of each attention block
    value_dims: SizeList = (32, 128, 256)  # value size of each attention block
    filters: Size = 128  # number of filters of each dense block
    score: ScoreTerm = Term("score", "scaled_dot")  # score of queries and keys
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms

    @model_validator(mode="after")
    def check_blocks(self) -> "TrunkConfig":
        count = len(self.key_dims)
        require(1 <= count <= 64, f"key_dims must have between 1 and 64 entries, not {count}")
        require(len(self.value_dims) == count, f"value_dims must have {count} entries, as key_dims has")
        # Check the options of the terms, with arbitrary sizes: those of the blocks differ.
        check_terms(Sizes(query=1, key=1, hidden=1, max_keys=1), score=self.score, align=self.align)
        return self


class SNAILConfig(TrunkConfig):
    """Sizes of a model for few-shot classification; the defaults are those of the paper for Omniglot."""

    ways: Size = 5  # number of classes per episode; set by the data
    shots: Size = 1  # number of examples per class; set by the data
    channels: Size = 1  # number of color channels; set by the data
    height: Size = 28  # height of the images in pixels; set by the data
    width: Size = 28  # width of the images in pixels; set by the data
    conv_layers: Count = 4  # number of image convolutions, each followed by 2 x 2 max pooling
    conv_channels: Size = 64  # number of channels of the image convolutions
    image_dim: Size = 64  # size of the feature vector of an image

    @model_validator(mode="after")
    def check_image(self) -> "SNAILConfig":
        sides = [getattr(self, key) for key in ("height", "width") if key in self.model_fields_set]  # set by the data
        require(
            all(side >> self.conv_layers > 0 for side in sides),
            f"conv_layers = {self.conv_layers} is too large for images of {self.height} x {self.width} pixels",
        )
        return self

    @property
    def length(self) -> int:
        """Number of images per episode."""
        return self.ways * self.shots + 1


class SNAILPolicyConfig(TrunkConfig):
    """Sizes of a policy; the default episode is a game of the paper: 10 pulls of a bandit with 5 arms."""

    actions: Size = 5  # number of actions; set by the data
    length: Size = 10  # number of steps of an episode; set by the data
    key_dims: SizeList = (32, 32)  # key size d of each attention block
    value_dims: SizeList = (32, 32)  # value size of each attention block
    filters: Size = 32  # number of filters of each dense block


@register("model", "snail")
class SNAIL(Model):
    """Few-shot classification: classify the last image given labeled ones."""

    config_class = SNAILConfig
    description = "SNAIL (Mishra et al. 2018): few-shot image classification with attention over an episode"

    def __init__(self, config: SNAILConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = ImageEmbedding(config)  # c
        self.norm = nn.LayerNorm(config.image_dim)  # LN
        self.trunk = Trunk(config, config.image_dim + config.ways, config.length)
        self.readout = nn.Linear(self.trunk.out_features, config.ways)  # W and b

    def forward(
        self, images: Float[Tensor, "batch length channels height width"], labels: Int[Tensor, "batch labeled"]
    ) -> Float[Tensor, "batch ways"]:
        """Return the logits of the last image's class."""
        if images.ndim != 5 or labels.shape != (images.shape[0], images.shape[1] - 1):
            raise ShapeError(
                "expected images [batch, length, channels, height, width] and labels [batch, length - 1], got "
                f"{list(images.shape)} and {list(labels.shape)}"
            )
        return self.classify(self.embed(images.flatten(0, 1)).unflatten(0, images.shape[:2]), labels)

    def classify(
        self, features: Float[Tensor, "batch length features"], labels: Int[Tensor, "batch labeled"]
    ) -> Float[Tensor, "batch ways"]:
        """Return the logits from precomputed image features c."""
        mean = features[:, :-1].sum(dim=1, keepdim=True) / max(1, labels.shape[1])
        features = self.norm(features - mean)
        one_hot = F.pad(F.one_hot(labels, self.config.ways), (0, 0, 0, 1))
        x = torch.cat((features, one_hot.to(features.dtype)), dim=-1)
        return self.readout(self.trunk(x)[:, -1])


@register("model", "snail_policy")
class SNAILPolicy(Model):
    """Reinforcement learning: the next action given past actions and rewards."""

    config_class = SNAILPolicyConfig
    description = "SNAIL (Mishra et al. 2018): a reinforcement learning policy with attention to its past"

    def __init__(self, config: SNAILPolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = Trunk(config, config.actions + 2, config.length)
        self.readout = nn.Linear(self.trunk.out_features, config.actions + 1)
        nn.init.zeros_(self.readout.weight)  # initially a uniform policy with value 0
        nn.init.zeros_(self.readout.bias)

    def forward(
        self, actions: Int[Tensor, "batch past"], rewards: Float[Tensor, "batch past"]
    ) -> tuple[Float[Tensor, "batch length actions"], Float[Tensor, "batch length"]]:
        """Return the logits of the action at each step, and the expected return from there.

        `actions` and `rewards` are those of the past steps; the output has one step more, that of the next action.
        """
        if actions.ndim != 2 or actions.shape != rewards.shape:
            raise ShapeError(
                f"actions and rewards must both be [batch, steps], got {list(actions.shape)} and {list(rewards.shape)}"
            )
        one_hot = F.one_hot(actions, self.config.actions).to(rewards.dtype)
        x = torch.cat((one_hot, rewards[..., None], torch.ones_like(rewards[..., None])), dim=-1)
        y = self.readout(self.trunk(F.pad(x, (0, 0, 1, 0))))
        return y[..., :-1], y[..., -1]


class Trunk(nn.Sequential):
    """h from x, shared by both models: attention blocks, with a temporal convolution between consecutive ones."""

    def __init__(self, config: TrunkConfig, features: int, length: int) -> None:
        super().__init__()
        for key_dim, value_dim in zip(config.key_dims, config.value_dims, strict=True):
            if len(self):
                self.append(TemporalConvolution(features, length, config.filters))
                features += dilated_layers(length) * config.filters
            self.append(AttentionBlock(config, features, key_dim, value_dim, length))
            features += value_dim
        self.out_features = features  # output size


class AttentionBlock(nn.Module):
    """[x_t ; attention output of x_t over x_1 ... x_t], single-headed."""

    def __init__(self, config: TrunkConfig, features: int, key_dim: int, value_dim: int, length: int) -> None:
        super().__init__()
        self.sizes = (key_dim, key_dim, value_dim)
        self.project = nn.Linear(features, sum(self.sizes))  # W and b of q, k and v, stacked
        sizes = Sizes(query=key_dim, key=key_dim, hidden=key_dim, max_keys=length)
        self.attend = Attend(config.score.build(sizes), config.align.build(sizes), backend=config.backend, heads=1)
        w_query, w_key, w_value = self.project.weight.detach().split(self.sizes)
        nn.init.xavier_uniform_(w_key)
        nn.init.xavier_uniform_(w_value)
        w_query.copy_(w_key)  # initially positions attend to similar ones
        nn.init.zeros_(self.project.bias)

    def forward(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch length out_features"]:
        query, key, value = (part[:, None] for part in self.project(x).split(self.sizes, dim=-1))
        attended = self.attend(query, key, value, Causal()).output[:, 0]
        return torch.cat((x, attended), dim=-1)  # [x_t ; sum_s a_ts v_s]


class TemporalConvolution(nn.Module):
    """Dense blocks with dilations 1, 2, 4, ...: as many as needed for a receptive field of `length` positions.

    The paper's listing starts at dilation 2 and would skip every second position; its text asks for a receptive field
    that covers the length, as implemented here.
    """

    def __init__(self, features: int, length: int, filters: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(DenseBlock(features + n * filters, 2**n, filters) for n in range(dilated_layers(length)))
        )

    def forward(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch length out_features"]:
        return self.blocks(x)


class DenseBlock(nn.Module):
    """[x_t ; tanh(f_t) * sigmoid(g_t)],   [f_t ; g_t] = W [x_{t-r} ; x_t] + b:   a kernel of two, r (dilation) apart.

    The input is padded with zeros on the left (van den Oord et al. 2016).
    """

    def __init__(self, features: int, dilation: int, filters: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.linear = nn.Linear(2 * features, 2 * filters)  # W and b
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch length out_features"]:
        delayed = F.pad(x, (0, 0, self.dilation, 0))[:, : x.shape[1]]  # x_{t-r}
        f, g = self.linear(torch.cat((delayed, x), dim=-1)).chunk(2, dim=-1)
        return torch.cat((x, torch.tanh(f) * torch.sigmoid(g)), dim=-1)


def dilated_layers(length: int) -> int:
    """ceil(log2 length): the number of doublings that covers `length` positions."""
    return (length - 1).bit_length()


class ImageEmbedding(nn.Module):
    """c: a stack of stages maxpool(relu(norm(conv(x)))), with 3 x 3 convolutions and 2 x 2 max pooling; a linear layer.

    The paper uses batch normalization. With group normalization (Wu and He 2018), the features of an image do not
    depend on other images, and are the same in training and evaluation.
    """

    def __init__(self, config: SNAILConfig) -> None:
        super().__init__()
        self.stages = nn.Sequential(
            *(
                Stage(config.conv_channels if number else config.channels, config.conv_channels)
                for number in range(config.conv_layers)
            )
        )
        remaining = (config.height >> config.conv_layers) * (config.width >> config.conv_layers)
        self.project = nn.Linear(remaining * config.conv_channels, config.image_dim)
        self.size = (config.channels, config.height, config.width)

    def forward(self, images: Float[Tensor, "count channels height width"]) -> Float[Tensor, "count image_dim"]:
        if images.shape[1:] != self.size:
            raise ShapeError(
                f"images must be [channels, height, width] = {list(self.size)}, not {list(images.shape[1:])}"
            )
        return self.project(self.stages(images.to(self.project.weight.dtype)).flatten(1))


class Stage(nn.Module):
    """maxpool(relu(norm(conv(x)))), with a 3 x 3 convolution; norm is over groups of eight channels if divisible."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)
        self.norm = nn.GroupNorm(outputs // 8 if outputs % 8 == 0 else 1, outputs)

    def forward(self, x: Float[Tensor, "count inputs height width"]) -> Float[Tensor, "count outputs rows columns"]:
        return F.max_pool2d(F.relu(self.norm(self.convolve(x))), 2)
