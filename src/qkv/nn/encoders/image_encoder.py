"""Encode images as grids of features for attention over image positions.

    a_i = norm(W f_i + p_i)        f_i: backbone features at position i,   p_i: learned position embedding

The backbone is a CNN, a Transformer over patches, or the identity for precomputed features. A model chooses one in its
config, `encoder = { name = "cnn", filters = [32, 64, 128] }`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, Strict
from torch import nn
from torch.nn import functional as F

from qkv.config import Count, Size, require
from qkv.errors import ShapeError
from qkv.nn.encoders.source_encoders import TransformerBlock
from qkv.registry import register
from qkv.types import Float, Tensor

GROUPS = 8  # of channels in group normalization
FILTERS = (32, 64, 128)
PATCH = 8

# Channels of up to eight convolutions, each of which halves height and width.
Filters = Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Strict(False), Field(min_length=1, max_length=8)]


class ImageSizes(NamedTuple):
    """Size of the images, and of the features of a position."""

    channels: int
    height: int
    width: int
    dim: int


class Backbone(nn.Module, ABC):
    """Maps images to [batch, dim, rows, columns], a grid of positions."""

    dim: int

    @classmethod
    @abstractmethod
    def stride(cls, options: Mapping[str, Any]) -> int:
        """Return the side of one position in pixels, with the options of a config."""

    @classmethod
    def check_options(cls, dim: int, options: Mapping[str, Any]) -> None:
        """Raise ConfigError if the options of a backbone do not fit `dim`."""


class ImageEncoder(nn.Module):
    """a_i of every position, row by row."""

    def __init__(self, backbone: Backbone, sizes: ImageSizes, grid: tuple[int, int]) -> None:
        super().__init__()
        self.image_shape = tuple(sizes[:3])
        self.backbone = backbone
        self.project = nn.Linear(backbone.dim, sizes.dim)  # W
        self.positions = position_embedding(grid, sizes.dim)  # p
        self.norm = nn.LayerNorm(sizes.dim)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch positions features"]:
        if images.ndim != 4 or tuple(images.shape[1:]) != self.image_shape:
            raise ShapeError(
                f"images must be [batch, {', '.join(map(str, self.image_shape))}] (channels, height and width), not "
                f"{list(images.shape)}"
            )
        f = self.backbone(images.to(self.project.weight.dtype)).flatten(2).transpose(1, 2)
        return self.norm(self.project(f) + self.positions)


@register("image_encoder", "cnn")
class Convolutions(Backbone):
    """x = gelu(norm(conv(x))) for each layer: 4 x 4 convolutions with stride 2.

    Group normalization (Wu and He 2018) makes an image's features independent of the rest of the batch.
    """

    def __init__(self, channels: int, filters: tuple[int, ...]) -> None:
        super().__init__()
        self.dim = filters[-1]
        sizes = list(pairwise((channels, *filters)))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, kernel_size=4, stride=2, padding=1) for inputs, outputs in sizes
        )
        # One-channel groups would normalize everything away where the grid has shrunk to one position.
        self.norms = nn.ModuleList(
            nn.GroupNorm(1 if outputs <= GROUPS else math.gcd(GROUPS, outputs), outputs) for _, outputs in sizes
        )

    @classmethod
    def from_sizes(cls, sizes: ImageSizes, *, filters: Filters = FILTERS) -> "Convolutions":  # channels of each layer
        return cls(sizes.channels, filters)

    @classmethod
    def stride(cls, options: Mapping[str, Any]) -> int:
        return 2 ** len(options.get("filters", FILTERS))

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features rows columns"]:
        for convolve, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.gelu(norm(convolve(x)))
        return x


@register("image_encoder", "patches")
class PatchTransformer(Backbone):
    """Transformer encoder over image patches, x_i E + p_i (Dosovitskiy et al. 2021), without a class token."""

    def __init__(self, channels: int, patch: int, grid: tuple[int, int], dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patch, self.grid, self.dim = patch, grid, dim
        self.embed = nn.Linear(channels * patch**2, dim)  # E
        self.positions = position_embedding(grid, dim)
        self.blocks = nn.ModuleList(TransformerBlock(dim, heads, 4 * dim, 0.0, "gelu") for _ in range(layers))

    @classmethod
    def from_sizes(
        cls,
        sizes: ImageSizes,
        *,
        patch: Size = PATCH,  # side of a patch in pixels
        layers: Count = 4,  # number of blocks
        heads: Count = 4,  # attention heads per layer
    ) -> "PatchTransformer":
        grid = sizes.height // patch, sizes.width // patch
        return cls(sizes.channels, patch, grid, sizes.dim, layers, heads)

    @classmethod
    def stride(cls, options: Mapping[str, Any]) -> int:
        return int(options.get("patch", PATCH))

    @classmethod
    def check_options(cls, dim: int, options: Mapping[str, Any]) -> None:
        heads = options.get("heads", 4)
        require(dim % heads == 0, f"feature_dim {dim} must be divisible by encoder.heads {heads}")

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        # b c (row y) (column x) -> b (row column) (c y x)
        patches = x.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        z = self.embed(patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)) + self.positions
        for block in self.blocks:
            z = block(z)
        return z.transpose(1, 2).unflatten(2, self.grid)


@register("image_encoder", "features")
class Features(Backbone):
    """The identity: the inputs are features of a grid of positions, such as those of a pretrained CNN."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    @classmethod
    def from_sizes(cls, sizes: ImageSizes) -> "Features":
        return cls(sizes.channels)

    @classmethod
    def stride(cls, options: Mapping[str, Any]) -> int:
        return 1

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        return x


def position_embedding(grid: tuple[int, int], features: int) -> nn.Parameter:
    """Return a learned embedding per grid position, initialized with N(0, 0.02^2)."""
    return nn.Parameter(torch.empty(grid[0] * grid[1], features).normal_(std=0.02))
