"""An image is worth 16x16 words (Dosovitskiy et al. 2021): a Transformer encoder over the patches of an image.

        z_0 = [x_class; x_1 E; x_2 E; ... x_N E] + E_pos            x_i: the flattened pixels of patch i
    z   = z + SelfAttention(norm(z));   z = z + FeedForward(norm(z))            in every block
    y   = norm(z)_class,   logits = W y + b

Positions are learned by default. For images of another size than in training, the learned grid is interpolated
(bicubic), as in the paper for fine-tuning at a higher resolution. Other positions, added or inside self-attention,
count the class token first and then the patches, row by row.

With a `stem`, patches are cut from the output of a few convolutions instead of the image (the paper's hybrid; Xiao et
al. 2021): their locality otherwise takes a Transformer many images to learn.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import SCORES, Sinusoidal, Sizes, build_score
from qkv.config import require, require_known
from qkv.errors import ShapeError
from qkv.nn.block import Block
from qkv.nn.embedding import POSITIONS
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import ACTIVATIONS, FeedForward
from qkv.nn.labels import label_names
from qkv.nn.multi_head import MultiHead
from qkv.nn.stack import Stack
from qkv.registry import register
from qkv.types import Float, Tensor

_SIZES: dict[str, dict[str, int]] = {
    "ti": {"dim": 192, "layers": 12, "heads": 3, "feedforward": 768},  # Ti and S: Touvron et al. 2021
    "s": {"dim": 384, "layers": 12, "heads": 6, "feedforward": 1536},
    "b": {"dim": 768, "layers": 12, "heads": 12, "feedforward": 3072},  # B, L and H: table 1 of the paper
    "l": {"dim": 1024, "layers": 24, "heads": 16, "feedforward": 4096},
    "h": {"dim": 1280, "layers": 32, "heads": 16, "feedforward": 5120},
}
PRESETS = {f"{name}/{patch}": {**size, "patch": patch} for name, size in _SIZES.items() for patch in (14, 16, 32)}

LEARNED, SINUSOIDAL = "learned", "sinusoidal"  # E_pos


@dataclass(frozen=True)
class Config:
    """Sizes and terms of the model; the image size and the number of classes come from the data."""

    classes: int | None = None  # None: no head; the model returns y
    label_names: tuple[str, ...] = ()  # if known
    height: int = 224  # of training images
    width: int = 224
    channels: int = 3
    patch: int = 16  # side in pixels
    stem: tuple[int, ...] = ()  # channels of the convolutions before the patches
    dim: int = 768
    layers: int = 12
    heads: int = 12
    feedforward: int = 3072
    dropout: float = 0.0
    attention_dropout: float | None = None  # of the attention weights; None: same as dropout
    activation: str = "gelu"
    score: str = "scaled_dot"
    position: str = LEARNED
    qkv_bias: bool = True
    pooler: bool = False  # y = tanh(W norm(z)_class + b): the hidden layer of the pre-training head
    eps: float = 1e-12  # of the layer normalisation

    def __post_init__(self) -> None:
        for name in ("height", "width", "channels", "patch", "dim", "layers", "heads", "feedforward"):
            require(1 <= getattr(self, name) <= 2**24, f"{name} must be between 1 and 2^24")
        require(self.classes is None or 1 <= self.classes <= 2**24, "classes must be between 1 and 2^24")
        require(
            not self.label_names or len(self.label_names) == self.classes,
            f"label_names has {len(self.label_names)} entries, but classes is {self.classes}",
        )
        require(self.layers <= 1024, "layers must be at most 1,024")
        for name in ("height", "width"):
            side = getattr(self, name)
            require(side % self.patch == 0, f"{name} {side} must be a multiple of patch {self.patch}")
        require(len(self.stem) <= 64, "stem must have at most 64 entries")
        for channels in self.stem:
            require(1 <= channels <= 2**16, f"stem must be between 1 and 2^16, not {channels}")
        pixels = self.features * self.patch**2
        widest = max(3 * self.dim, self.feedforward, self.patches + 1, pixels, self.classes or 1)
        require(self.dim * widest <= 2**36, f"dim {self.dim} gives a matrix of more than 2^36 elements")
        require(self.dim % self.heads == 0, f"dim {self.dim} must be a multiple of heads {self.heads}")
        for name in ("dropout", "attention_dropout"):
            p = getattr(self, name)
            require(p is None or 0 <= p < 1, f"{name} must be in [0, 1)")
        require_known(self, activation=ACTIVATIONS, score=SCORES, position=(LEARNED, SINUSOIDAL, *POSITIONS))
        require(
            self.position != "rotary" or self.dim // self.heads % 2 == 0,
            f"position 'rotary' needs an even head size, but dim {self.dim} / heads {self.heads} is odd",
        )
        require(0 < self.eps < 1, "eps must be in (0, 1)")

    @property
    def attention_dropout_p(self) -> float:
        """Dropout rate of the attention weights."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def features(self) -> int:
        """Number of channels that patches are cut from."""
        return self.stem[-1] if self.stem else self.channels

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.height // self.patch, self.width // self.patch

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]


@register("model", "vit")
class ViT(nn.Module):
    """Vision Transformer."""

    config_class = Config
    presets: ClassVar = PRESETS

    tokenizer: Any = None  # not used

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        widths = (config.channels, *config.stem)
        self.stem = Stack(Convolution(inputs, outputs) for inputs, outputs in pairwise(widths))
        self.patch_embed = PatchEmbedding(config.features, config.patch, config.dim)  # E
        self.class_token = normal(1, 1, config.dim)  # x_class
        self.positions = normal(1, 1 + config.patches, config.dim) if config.position == LEARNED else None  # E_pos
        self.sinusoidal = Sinusoidal(config.dim) if config.position == SINUSOIDAL else None
        self.dropout = Dropout(config.dropout)
        self.encoder = Stack(block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.dim, config.eps)
        self.pooler = nn.Linear(config.dim, config.dim) if config.pooler else None
        self.head = None if config.classes is None else nn.Linear(config.dim, config.classes)  # W

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, or LABEL_0, LABEL_1, ... as in transformers if unnamed."""
        return label_names(self.config.label_names, self.config.classes or 0)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch scores"]:
        """Return the logits of the classes, or without a head the final state of the class token."""
        y = self.encode(images)[:, 0]
        if self.pooler is not None:
            y = torch.tanh(self.pooler(y))
        return y if self.head is None else self.head(y)

    def encode(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch tokens dim"]:
        """Return norm(z): the state of the class token, then those of the patches, row by row."""
        x = images
        for convolution in self.stem:
            x = convolution(x)
        patches, grid = self.patch_embed(x)
        z = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1)
        if self.positions is not None:
            z = z + self.interpolate_positions(self.positions, grid)
        if self.sinusoidal is not None:
            z = z + self.sinusoidal(z.shape[1])
        z = self.dropout(z)
        for encoder_block in self.encoder:
            z, _ = encoder_block(z)
        return self.norm(z)

    def interpolate_positions(
        self, positions: Float[Tensor, "1 trained_tokens dim"], grid: tuple[int, int]
    ) -> Float[Tensor, "1 tokens dim"]:
        """Interpolate E_pos to a grid of patches of any size."""
        if grid == self.config.grid:
            return positions
        class_position, learned = positions.split((1, self.config.patches), dim=1)
        learned = learned.unflatten(1, self.config.grid).movedim(-1, 1)  # 1 d rows columns
        resized = F.interpolate(learned, grid, mode="bicubic", align_corners=False)
        return torch.cat((class_position, resized.flatten(2).transpose(1, 2)), dim=1)

    @property
    def device(self) -> torch.device:
        return self.class_token.device


class Convolution(nn.Module):
    """gelu(norm(C * x)) with a 3 x 3 convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)
        self.norm = nn.GroupNorm(1, outputs)  # independent of the other images of the batch

    def forward(self, x: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs height width"]:
        if x.ndim != 4 or x.shape[1] != self.convolve.in_channels:
            channels = self.convolve.in_channels
            raise ShapeError(f"images must be [batch, {channels} channels, height, width], not {list(x.shape)}")
        return F.gelu(self.norm(self.convolve(x.to(self.convolve.weight.dtype))))


class PatchEmbedding(nn.Module):
    """x E + b for each patch x of an image: a convolution whose stride equals its kernel size."""

    def __init__(self, channels: int, patch: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, channels, patch, patch))  # the transpose of E
        self.bias = nn.Parameter(torch.zeros(dim))
        nn.init.xavier_uniform_(self.weight.view(dim, -1))

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> tuple[Float[Tensor, "batch patches dim"], tuple[int, int]]:
        """Return the embedded patches row by row, and the numbers of rows and columns."""
        _, channels, side, _ = self.weight.shape
        if images.ndim != 4 or images.shape[1] != channels:
            raise ShapeError(f"images must be [batch, {channels} channels, height, width], not {list(images.shape)}")
        height, width = images.shape[2:]
        if height < side or width < side or height % side or width % side:
            raise ShapeError(
                f"images of {height} x {width} pixels cannot be divided into patches of {side} x {side}: scale or crop "
                f"them to multiples of {side}"
            )
        # b c (row y) (column x) -> b (row column) (c y x). A matrix product is exact in float32 on a GPU, too, where
        # convolutions use TF32.
        patches = images.to(self.weight.dtype).unflatten(3, (-1, side)).unflatten(2, (-1, side))
        pixels = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return F.linear(pixels, self.weight.flatten(1), self.bias), (height // side, width // side)


def block(config: Config) -> Block:
    """Build a block of self-attention over all patches and feed-forward network."""
    features = config.dim // config.heads
    sizes = Sizes(features, features, hidden=features, max_keys=1 + config.patches, heads=config.heads)
    position = POSITIONS.get(config.position)
    attention = MultiHead(
        config.dim, config.heads, config.attention_dropout_p, bias=config.qkv_bias,
        score=build_score(config.score, sizes),
        position=None if position is None else position(config.dim, config.heads),
    )  # fmt: skip
    feedforward = FeedForward(config.dim, config.feedforward, config.dropout, config.activation)
    return Block(attention, feedforward, config.dropout, norm="pre", eps=config.eps)


def normal(*shape: int) -> nn.Parameter:
    """Return a parameter initialised with N(0, 0.02^2)."""
    return nn.Parameter(torch.empty(shape).normal_(std=0.02))
