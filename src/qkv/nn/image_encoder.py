"""Encode images as grids of features for attention over image positions.

    a_i = norm(W f_i + p_i)        f_i: backbone features at position i,   p_i: learned position embedding

The backbone is a CNN, a Transformer over patches, or the identity for precomputed features.
"""

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from qkv.errors import ShapeError
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multi_head import MultiHeadAttention
from qkv.nn.stack import Stack
from qkv.types import Float, Tensor

GROUPS = 8  # of channels in group normalisation


class ImageEncoder(nn.Module):
    """a_i of every position, row by row; `backbone` maps images to [batch, backbone_dim, rows, columns]."""

    def __init__(
        self, backbone: nn.Module, backbone_dim: int, grid: tuple[int, int], features: int, image_shape: tuple[int, ...]
    ):
        super().__init__()
        self.image_shape = image_shape  # channels, height, width
        self.backbone = backbone
        self.project = nn.Linear(backbone_dim, features)  # W
        self.positions = position_embedding(grid, features)  # p
        self.norm = nn.LayerNorm(features)

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


class Convolutions(nn.Module):
    """x = gelu(norm(C x)) for each layer: 4 x 4 convolutions with stride 2.

    Group normalisation (Wu and He 2018) makes an image's features independent of the rest of the batch.
    """

    def __init__(self, channels: int, filters: tuple[int, ...]) -> None:
        super().__init__()
        sizes = list(pairwise((channels, *filters)))
        self.convolutions = Stack(
            nn.Conv2d(inputs, outputs, kernel_size=4, stride=2, padding=1) for inputs, outputs in sizes
        )
        # One-channel groups would normalise everything away where the grid has shrunk to one position.
        self.norms = Stack(
            nn.GroupNorm(1 if outputs <= GROUPS else math.gcd(GROUPS, outputs), outputs) for _, outputs in sizes
        )

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features rows columns"]:
        for convolve, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.gelu(norm(convolve(x)))
        return x


class PatchTransformer(nn.Module):
    """Transformer encoder over image patches, x_i E + p_i (Dosovitskiy et al. 2021), without a class token."""

    def __init__(self, channels: int, patch: int, grid: tuple[int, int], dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patch, self.grid = patch, grid
        self.embed = nn.Linear(channels * patch**2, dim)  # E
        self.positions = position_embedding(grid, dim)
        self.blocks = Stack(Block(dim, heads) for _ in range(layers))

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        # b c (row y) (column x) -> b (row column) (c y x)
        patches = x.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        z = self.embed(patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)) + self.positions
        for block in self.blocks:
            z = block(z)
        return z.transpose(1, 2).unflatten(2, self.grid)


class Block(nn.Module):
    """z = z + SelfAttention(LN(z)),   z = z + FFN(LN(z))   (pre-norm)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim, heads)
        self.attention_norm = nn.LayerNorm(dim)
        self.ffn = FeedForward(dim, 4 * dim, activation="gelu")
        self.ffn_norm = nn.LayerNorm(dim)

    def forward(self, z: Float[Tensor, "batch patches dim"]) -> Float[Tensor, "batch patches dim"]:
        z = z + self.attention(self.attention_norm(z))[0]
        return z + self.ffn(self.ffn_norm(z))


def position_embedding(grid: tuple[int, int], features: int) -> nn.Parameter:
    """Return a learned embedding per grid position, initialised with N(0, 0.02^2)."""
    return nn.Parameter(torch.empty(grid[0] * grid[1], features).normal_(std=0.02))
