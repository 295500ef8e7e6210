"""SNAIL, a simple neural attentive learner (Mishra, Rohaninejad, Chen and Abbeel 2018): it learns while it reads.

An episode is one sequence, and to learn from it is to read it: temporal convolutions gather what lies before each
place, attention picks from it what the place needs. Each block puts what it finds behind what it was given.

    Attend(x)_t   = [x_t ; sum_{s <= t} a_ts (V x_s)],   a_t = softmax_{s <= t}((Q x_t) . (K x_s) / sqrt(d))
    Convolve(x)_t = [x_t ; what the dense blocks of `qkv.nn.temporal_convolution` find up to t]
    h             = Attend(Convolve(Attend(Convolve(Attend(x)))))
    y_t           = W h_t + b

Few-shot classification: x_t = [norm(f(picture_t) - mean f) ; its label as one-hot], f some convolutions learned with
the rest. The last picture has zeros for a label, and y there are the logits of its class. The mean is that of the
pictures with a label: what all pictures of an episode have in common tells nothing, and while it outweighs how they
differ, attention cannot tell them apart. (The paper's normalisation over the batch takes it away; see `Embedding`.)

Reinforcement learning: x_t = [the last action as one-hot ; the reward it brought ; whether there was one], and y_t are
the logits of the next action and what reward is expected until the end.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Attend, Causal
from qkv.config import require
from qkv.errors import ShapeError
from qkv.nn.stack import Stack
from qkv.nn.temporal_convolution import TemporalConvolution, reach_depth
from qkv.types import Float, Int, Tensor

MOST = 2**16  # classes, features and places


@dataclass(frozen=True)
class Config:
    """The sizes of a model for few-shot classification; the data set those of episodes and pictures."""

    ways: int  # how many classes an episode has
    shots: int  # how many examples of each
    channels: int = 1
    height: int = 28
    width: int = 28
    maps: int = 64  # what each convolution over a picture finds
    stages: int = 4  # such convolutions, each followed by one that keeps the largest of 2 x 2
    features: int = 64  # of a picture
    keys: tuple[int, ...] = (64, 256, 512)  # d of each attention, from the first to the last
    values: tuple[int, ...] = (32, 128, 256)  # what each reads
    filters: int = 128  # of the temporal convolutions between them

    def __post_init__(self) -> None:
        for name in ("ways", "shots", "channels", "height", "width", "maps", "features"):
            require(1 <= getattr(self, name) <= MOST, f"{name} must lie between 1 and 2^16")
        require(1 <= self.stages <= 16, "stages must lie between 1 and 16")
        require(
            min(self.height, self.width) >= 2**self.stages,
            f"pictures of {self.height} x {self.width} pixels are too small to be halved {self.stages} times",
        )
        check_trunk(self.keys, self.values, self.filters, self.length)

    @property
    def length(self) -> int:
        """How many pictures an episode has."""
        return self.ways * self.shots + 1


@dataclass(frozen=True)
class PolicyConfig:
    """The sizes of a model that acts; the data set how many actions there are and how many it takes."""

    actions: int
    length: int
    keys: tuple[int, ...] = (32, 32)
    values: tuple[int, ...] = (32, 32)
    filters: int = 32

    def __post_init__(self) -> None:
        for name in ("actions", "length"):
            require(1 <= getattr(self, name) <= MOST, f"{name} must lie between 1 and 2^16")
        check_trunk(self.keys, self.values, self.filters, self.length)


def check_trunk(keys: tuple[int, ...], values: tuple[int, ...], filters: int, length: int) -> None:
    """Raise where blocks of these sizes cannot be made."""
    require(1 <= len(keys) <= 64, "keys: between 1 and 64 attention blocks")
    require(len(keys) == len(values), f"there are {len(keys)} keys, but {len(values)} values: one of each a block")
    require(all(1 <= size <= MOST for size in (*keys, *values)), "keys and values must lie between 1 and 2^16")
    require(1 <= filters <= MOST, "filters must lie between 1 and 2^16")
    require(length <= 2**24, "an episode has more than 2^24 places")


class SNAIL(nn.Module):
    """Few-shot classification: pictures with labels, then one without."""

    tokenizer: Any = None  # pictures need none

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config)  # f
        self.norm = nn.LayerNorm(config.features)
        self.trunk = Trunk(config.features + config.ways, config.keys, config.values, config.filters, config.length)
        self.output = nn.Linear(self.trunk.wider, config.ways)  # W and b

    def forward(
        self, pictures: Float[Tensor, "batch length channels height width"], labels: Int[Tensor, "batch shown"]
    ) -> Float[Tensor, "batch ways"]:
        """The logits of the last picture's class, after all pictures but the last with their labels."""
        if pictures.ndim != 5 or labels.shape != (pictures.shape[0], pictures.shape[1] - 1):
            raise ShapeError(
                "an episode has a label for each picture but the last: pictures of shape [batch, length, channels, "
                f"height, width] and labels [batch, length - 1], not {list(pictures.shape)} and {list(labels.shape)}"
            )
        return self.classify(self.embed(pictures.flatten(0, 1)).unflatten(0, pictures.shape[:2]), labels)

    def classify(
        self, features: Float[Tensor, "batch length features"], labels: Int[Tensor, "batch shown"]
    ) -> Float[Tensor, "batch ways"]:
        """The same of pictures whose features f are known."""
        common = features[:, :-1].sum(dim=1, keepdim=True) / max(1, labels.shape[1])
        features = self.norm(features - common)
        known = F.pad(F.one_hot(labels, self.config.ways), (0, 0, 0, 1))
        x = torch.cat((features, known.to(features.dtype)), dim=-1)
        return self.output(self.trunk(x)[:, -1])

    @property
    def device(self) -> torch.device:
        return self.output.weight.device


class SNAILPolicy(nn.Module):
    """Reinforcement learning: actions and what they brought, then the next action."""

    tokenizer: Any = None

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = Trunk(config.actions + 2, config.keys, config.values, config.filters, config.length)
        self.output = nn.Linear(self.trunk.wider, config.actions + 1)
        nn.init.zeros_(self.output.weight)  # at first every action is as likely, and nothing is expected
        nn.init.zeros_(self.output.bias)

    def forward(
        self, actions: Int[Tensor, "batch taken"], rewards: Float[Tensor, "batch taken"]
    ) -> tuple[Float[Tensor, "batch length actions"], Float[Tensor, "batch length"]]:
        """Logits of the action at each place, the first of which has nothing before it, and the reward still to come.

        There is a place more than actions were taken: that of the next.
        """
        if actions.ndim != 2 or actions.shape != rewards.shape:
            raise ShapeError(
                f"each action has a reward: both [batch, taken], not {list(actions.shape)} and {list(rewards.shape)}"
            )
        taken = F.one_hot(actions, self.config.actions).to(rewards.dtype)
        x = torch.cat((taken, rewards[..., None], torch.ones_like(rewards[..., None])), dim=-1)
        y = self.output(self.trunk(F.pad(x, (0, 0, 1, 0))))
        return y[..., :-1], y[..., -1]

    @property
    def device(self) -> torch.device:
        return self.output.weight.device


class Trunk(Stack["AttentionBlock | TemporalConvolution"]):
    """Attention, and before each but the first a temporal convolution."""

    def __init__(
        self, features: int, keys: tuple[int, ...], values: tuple[int, ...], filters: int, length: int
    ) -> None:
        blocks: list[AttentionBlock | TemporalConvolution] = []
        for key, value in zip(keys, values, strict=True):
            if blocks:
                blocks.append(TemporalConvolution(features, length, filters))
                features += reach_depth(length) * filters
            blocks.append(AttentionBlock(features, key, value))
            features += value
        super().__init__(blocks)
        self.wider = features  # how many there are afterwards

    def forward(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch length wider"]:
        for block in self:
            x = block(x)
        return x


class AttentionBlock(nn.Module):
    """[x_t ; what x_t reads of x_1 ... x_t]: one head."""

    def __init__(self, features: int, key: int, value: int) -> None:
        super().__init__()
        self.sizes = (key, key, value)
        self.project = nn.Linear(features, sum(self.sizes))  # Q, K and V, one below the other
        self.attend = Attend(heads=1)
        query, keys, values = self.project.weight.detach().split(self.sizes)
        nn.init.xavier_uniform_(keys)
        nn.init.xavier_uniform_(values)
        query.copy_(keys)  # at first a place reads those that are like it
        nn.init.zeros_(self.project.bias)

    def forward(self, x: Float[Tensor, "batch length features"]) -> Float[Tensor, "batch length wider"]:
        query, key, value = (part[:, None] for part in self.project(x).split(self.sizes, dim=-1))
        read = self.attend(query, key, value, Causal()).output[:, 0]
        return torch.cat((x, read), dim=-1)


class Embedding(nn.Module):
    """f: some stages of largest(relu(norm(C * picture))) over 2 x 2 pixels each, and a linear map of what remains.

    The paper normalises over the batch. Here each picture is normalised by itself, over all its pixels and a group of
    maps (Wu and He 2018): an answer then depends on its episode alone, in training and after it, and there are no
    averages of training to be kept with the weights.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        channels = (config.channels, *[config.maps] * (config.stages - 1))
        self.stages = Stack(Stage(read, config.maps) for read in channels)
        remaining = (config.height >> config.stages) * (config.width >> config.stages)
        self.output = nn.Linear(remaining * config.maps, config.features)
        self.size = (config.channels, config.height, config.width)

    def forward(self, pictures: Float[Tensor, "count channels height width"]) -> Float[Tensor, "count features"]:
        if pictures.shape[1:] != self.size:
            raise ShapeError(
                f"pictures must be [channels, height, width] = {list(self.size)}, not {list(pictures.shape[1:])}"
            )
        x = pictures.to(self.output.weight.dtype)
        for stage in self.stages:
            x = stage(x)
        return self.output(x.flatten(1))


class Stage(nn.Module):
    """largest(relu(norm(C * x))): what each pixel and its eight neighbours have in them, on half as many pixels."""

    def __init__(self, read: int, found: int) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(read, found, kernel_size=3, padding=1)
        self.norm = nn.GroupNorm(groups(found), found)

    def forward(self, x: Float[Tensor, "count read height width"]) -> Float[Tensor, "count found lower narrower"]:
        return F.max_pool2d(F.relu(self.norm(self.convolve(x))), 2)


def groups(maps: int) -> int:
    """How many groups maps are normalised in: of eight where that works out, else one of all."""
    return maps // 8 if maps % 8 == 0 else 1
