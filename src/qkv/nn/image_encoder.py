"""LabeledImages as grids of features, which a decoder can attend to place by place.

    a_i = norm(W f_i + p_i)        f_i: what was found at place i,   p_i: learned, for a place does not know where it is

What is found comes of convolutions, of a Transformer over patches, or was found before by another network.
"""

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from qkv.errors import ShapeError
from qkv.nn.block import Block
from qkv.nn.feedforward import FeedForward
from qkv.nn.heads import MultiHead
from qkv.nn.stack import Stack
from qkv.types import Float, Tensor

GROUPS = 8  # of channels that are normalised together


class ImageEncoder(nn.Module):
    """a_i of every place, row by row; `find` makes [batch, found, rows, columns] of pictures of one size."""

    def __init__(self, find: nn.Module, found: int, grid: tuple[int, int], features: int, picture: tuple[int, ...]):
        super().__init__()
        self.picture = picture  # channels, height, width
        self.find = find
        self.project = nn.Linear(found, features)  # W
        self.positions = places_of(grid, features)  # p
        self.norm = nn.LayerNorm(features)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch places features"]:
        if images.ndim != 4 or tuple(images.shape[1:]) != self.picture:
            raise ShapeError(
                f"pictures must be [batch, {', '.join(map(str, self.picture))}] (channels, height and width), not "
                f"{list(images.shape)}"
            )
        found = self.find(images.to(self.project.weight.dtype)).flatten(2).transpose(1, 2)
        return self.norm(self.project(found) + self.positions)


class Convolutions(nn.Module):
    """x = gelu(norm(C x)), one after the other, each over 4 x 4 pixels and with half as many of them a side.

    Normalised are groups of channels of one picture (Wu and He 2018): no other picture of a batch makes a difference.
    """

    def __init__(self, channels: int, filters: tuple[int, ...]) -> None:
        super().__init__()
        sizes = list(pairwise((channels, *filters)))
        self.convolve = Stack(nn.Conv2d(read, found, kernel_size=4, stride=2, padding=1) for read, found in sizes)
        # Of a channel by itself nothing would be left where a picture has shrunk to one place.
        self.norms = Stack(nn.GroupNorm(1 if found <= GROUPS else math.gcd(GROUPS, found), found) for _, found in sizes)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch found rows columns"]:
        for convolve, norm in zip(self.convolve, self.norms, strict=True):
            x = F.gelu(norm(convolve(x)))
        return x


class PatchTransformer(nn.Module):
    """A Transformer encoder over the patches of a picture, x_i E + p_i (Dosovitskiy et al. 2021), without a class."""

    def __init__(self, channels: int, patch: int, grid: tuple[int, int], dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patch, self.grid = patch, grid
        self.embed = nn.Linear(channels * patch**2, dim)  # E
        self.positions = places_of(grid, dim)
        self.blocks = Stack(Block(MultiHead(dim, heads), FeedForward(dim, 4 * dim, 0.0, "gelu")) for _ in range(layers))

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        # b c (row y) (column x) -> b (row column) (c y x)
        cut = x.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        z = self.embed(cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)) + self.positions
        for block in self.blocks:
            z, _ = block(z)
        return z.transpose(1, 2).unflatten(2, self.grid)


def places_of(grid: tuple[int, int], features: int) -> nn.Parameter:
    """Something to learn for each place of a grid: N(0, 0.02^2) to begin with."""
    return nn.Parameter(torch.empty(grid[0] * grid[1], features).normal_(std=0.02))
