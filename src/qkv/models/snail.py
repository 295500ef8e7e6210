"""SNAIL, a simple neural attentive meta-learner (Mishra, Rohaninejad, Chen and Abbeel 2018).

An episode is one sequence: temporal convolutions aggregate the past of each position, and attention selects from it.
Each block concatenates its output to its input.

    Attend(x)_t   = [x_t ; sum_{s <= t} a_ts (V x_s)],   a_t = softmax_{s <= t}((Q x_t) . (K x_s) / sqrt(d))
        Convolve(x)_t = [x_t ; output of the dense blocks of `qkv.nn.temporal_convolution` at t]
    h             = Attend(Convolve(Attend(Convolve(Attend(x)))))
    y_t           = W h_t + b

Few-shot classification: x_t = [norm(f(image_t) - mean f) ; one-hot label], with f a CNN trained jointly. The last image
has zeros for a label, and y there are the logits of its class. The mean is over the labelled images: whatever all
images of an episode share is uninformative, and as long as it outweighs their differences, attention cannot distinguish
them. (The paper's batch normalisation removes it; see `Embedding`.)

Reinforcement learning: x_t = [one-hot last action ; its reward ; whether there was one], and y_t are the logits of the
next action and the expected return.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Attend, Causal
from qkv.config import require
from qkv.errors import ShapeError
from qkv.nn.interfaces import Model
from qkv.nn.stack import Stack
from qkv.nn.temporal_convolution import TemporalConvolution, dilated_layers
from qkv.registry import register
from qkv.types import Float, Int, Tensor

MAX_SIZE = 2**16  # of classes, features and positions


@dataclass(frozen=True)
class Config:
    """Sizes of a model for few-shot classification; those of episodes and images come from the data."""

    ways: int  # classes per episode
    shots: int  # examples per class
    channels: int = 1
    height: int = 28
    width: int = 28
    maps: int = 64  # channels of the image convolutions
    stages: int = 4  # number of image convolutions, each followed by 2 x 2 max pooling
    features: int = 64  # of an image
    keys: tuple[int, ...] = (64, 256, 512)  # d of each attention block
    values: tuple[int, ...] = (32, 128, 256)  # value size of each attention block
    filters: int = 128  # of the temporal convolutions

    def __post_init__(self) -> None:
        for name in ("ways", "shots", "channels", "height", "width", "maps", "features"):
            require(1 <= getattr(self, name) <= MAX_SIZE, f"{name} must be between 1 and 2^16")
        require(1 <= self.stages <= 16, "stages must be between 1 and 16")
        require(
            min(self.height, self.width) >= 2**self.stages,
            f"images of {self.height} x {self.width} pixels are too small for {self.stages} stages of 2 x 2 pooling",
        )
        check_trunk(self.keys, self.values, self.filters, self.length)

    @property
    def length(self) -> int:
        """Number of images per episode."""
        return self.ways * self.shots + 1


@dataclass(frozen=True)
class PolicyConfig:
    """Sizes of a policy; the numbers of actions and steps come from the data."""

    actions: int
    length: int
    keys: tuple[int, ...] = (32, 32)
    values: tuple[int, ...] = (32, 32)
    filters: int = 32

    def __post_init__(self) -> None:
        for name in ("actions", "length"):
            require(1 <= getattr(self, name) <= MAX_SIZE, f"{name} must be between 1 and 2^16")
        check_trunk(self.keys, self.values, self.filters, self.length)


def check_trunk(keys: tuple[int, ...], values: tuple[int, ...], filters: int, length: int) -> None:
    """Raise if the blocks have invalid sizes."""
    require(1 <= len(keys) <= 64, "keys must have between 1 and 64 entries")
    require(len(keys) == len(values), f"keys has {len(keys)} entries, but values has {len(values)}")
    require(all(1 <= size <= MAX_SIZE for size in (*keys, *values)), "keys and values must be between 1 and 2^16")
    require(1 <= filters <= MAX_SIZE, "filters must be between 1 and 2^16")
    require(length <= 2**24, "an episode must have at most 2^24 positions")


@register("model", "snail")
class SNAIL(Model):
    """Few-shot classification: classify the last image given labelled ones."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config)  # f
        self.norm = nn.LayerNorm(config.features)
        self.trunk = Trunk(config.features + config.ways, config.keys, config.values, config.filters, config.length)
        self.output = nn.Linear(self.trunk.out_features, config.ways)  # W and b

    def forward(
        self, images: Float[Tensor, "batch length channels height width"], labels: Int[Tensor, "batch shown"]
    ) -> Float[Tensor, "batch ways"]:
        """Return the logits of the last image's class."""
        if images.ndim != 5 or labels.shape != (images.shape[0], images.shape[1] - 1):
            raise ShapeError(
                "expected images [batch, length, channels, height, width] and labels [batch, length - 1], got "
                f"{list(images.shape)} and {list(labels.shape)}"
            )
        return self.classify(self.embed(images.flatten(0, 1)).unflatten(0, images.shape[:2]), labels)

    def classify(
        self, features: Float[Tensor, "batch length features"], labels: Int[Tensor, "batch shown"]
    ) -> Float[Tensor, "batch ways"]:
        """Return the logits from precomputed image features f."""
        mean = features[:, :-1].sum(dim=1, keepdim=True) / max(1, labels.shape[1])
        features = self.norm(features - mean)
        one_hot = F.pad(F.one_hot(labels, self.config.ways), (0, 0, 0, 1))
        x = torch.cat((features, one_hot.to(features.dtype)), dim=-1)
        return self.output(self.trunk(x)[:, -1])


@register("model", "snail_policy")
class SNAILPolicy(Model):
    """Reinforcement learning: the next action given past actions and rewards."""

    config_class = PolicyConfig

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = Trunk(config.actions + 2, config.keys, config.values, config.filters, config.length)
        self.output = nn.Linear(self.trunk.out_features, config.actions + 1)
        nn.init.zeros_(self.output.weight)  # initially a uniform policy with value 0
        nn.init.zeros_(self.output.bias)

    def forward(
        self, actions: Int[Tensor, "batch taken"], rewards: Float[Tensor, "batch taken"]
    ) -> tuple[Float[Tensor, "batch length actions"], Float[Tensor, "batch length"]]:
        """Return the logits of the action at each step, and the expected return from there.

        The output has one step more than `actions`: that of the next action.
        """
        if actions.ndim != 2 or actions.shape != rewards.shape:
            raise ShapeError(
                f"actions and rewards must both be [batch, taken], got {list(actions.shape)} and {list(rewards.shape)}"
            )
        taken = F.one_hot(actions, self.config.actions).to(rewards.dtype)
        x = torch.cat((taken, rewards[..., None], torch.ones_like(rewards[..., None])), dim=-1)
        y = self.output(self.trunk(F.pad(x, (0, 0, 1, 0))))
        return y[..., :-1], y[..., -1]


class Trunk(Stack["AttentionBlock | TemporalConvolution"]):
    """Attention blocks, with a temporal convolution between each two."""

    def __init__(
        self, features: int, keys: tuple[int, ...], values: tuple[int, ...], filters: int, length: int
    ) -> None:
        blocks: list[AttentionBlock | TemporalConvolution] = []
        for key, value in zip(keys, values, strict=True):
            if blocks:
                blocks.append(TemporalConvolution(features, length, filters))
                features += dilated_layers(length) * filters
            blocks.append(AttentionBlock(features, key, value))
            features += value
        super().__init__(blocks)
        self.out_features = features  # output size

    def forward(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch length out_features"]:
        for block in self:
            x = block(x)
        return x


class AttentionBlock(nn.Module):
    """[x_t ; attention output of x_t over x_1 ... x_t], single-headed."""

    def __init__(self, features: int, key: int, value: int) -> None:
        super().__init__()
        self.sizes = (key, key, value)
        self.project = nn.Linear(features, sum(self.sizes))  # Q, K and V, stacked
        self.attend = Attend(heads=1)
        query, keys, values = self.project.weight.detach().split(self.sizes)
        nn.init.xavier_uniform_(keys)
        nn.init.xavier_uniform_(values)
        query.copy_(keys)  # initially positions attend to similar ones
        nn.init.zeros_(self.project.bias)

    def forward(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch length out_features"]:
        query, key, value = (part[:, None] for part in self.project(x).split(self.sizes, dim=-1))
        attended = self.attend(query, key, value, Causal()).output[:, 0]
        return torch.cat((x, attended), dim=-1)


class Embedding(nn.Module):
    """f: stages of maxpool(relu(norm(C * image))) over 2 x 2 pixels each, and a linear layer.

    The paper uses batch normalisation. Here group normalisation (Wu and He 2018) makes the output depend on its episode
    alone, in training and evaluation, without running averages.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        channels = (config.channels, *[config.maps] * (config.stages - 1))
        self.stages = Stack(Stage(inputs, config.maps) for inputs in channels)
        remaining = (config.height >> config.stages) * (config.width >> config.stages)
        self.output = nn.Linear(remaining * config.maps, config.features)
        self.size = (config.channels, config.height, config.width)

    def forward(self, images: Float[Tensor, "count channels height width"]) -> Float[Tensor, "count features"]:
        if images.shape[1:] != self.size:
            raise ShapeError(
                f"images must be [channels, height, width] = {list(self.size)}, not {list(images.shape[1:])}"
            )
        x = images.to(self.output.weight.dtype)
        for stage in self.stages:
            x = stage(x)
        return self.output(x.flatten(1))


class Stage(nn.Module):
    """maxpool(relu(norm(C * x))) with a 3 x 3 convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)
        self.norm = nn.GroupNorm(groups(outputs), outputs)

    def forward(self, x: Float[Tensor, "count inputs height width"]) -> Float[Tensor, "count outputs rows columns"]:
        return F.max_pool2d(F.relu(self.norm(self.convolve(x))), 2)


def groups(maps: int) -> int:
    """Number of normalisation groups: of eight maps each if divisible, else one."""
    return maps // 8 if maps % 8 == 0 else 1
