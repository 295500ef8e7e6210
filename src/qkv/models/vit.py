"""An image is worth 16x16 words (Dosovitskiy et al. 2021): a Transformer encoder over the patches of an image.

    z_0 = [x_class ; x_1 E + b_E ; ... ; x_N E + b_E] + E_pos       x_i: the flattened pixels of patch i
    z   = z + SelfAttention(LN(z));   z = z + FFN(LN(z))            in every block
    y   = LN(z)_class,   logits = W y + b                           with `pooler`, y = tanh(W_p LN(z)_class + b_p)

With `pool = "mean"`, LN(z)_class is replaced by the mean of LN(z) over the patches (Beyer, Zhai and Kolesnikov 2022);
the class token remains one of the tokens.

x_class is a learned vector, [. ; .] is a sequence of N + 1 vectors, and LN is layer normalization.

Positions are learned by default. If an image differs in size from the training images, the learned positions of the
grid of patches are interpolated (bicubic), as in the paper for fine-tuning at a higher resolution. Other positions,
added or inside self-attention, number the class token first and then the patches, row by row.

With a `stem`, patches are cut from the output of a few convolutions instead of the image (the paper's hybrid; Xiao et
al. 2021). Convolutions relate neighboring pixels from the start, which a Transformer has to learn from many images.
"""

from functools import partial
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, Strict, model_validator
from torch import nn
from torch.nn import functional as F

from qkv.attention import Learned, Quadratic, Sizes
from qkv.config import (
    AlignTerm,
    Config,
    Count,
    PositionTerm,
    PositiveFloat,
    Rate,
    ScoreTerm,
    Size,
    StringList,
    Term,
    require,
    require_matrix_size,
)
from qkv.errors import ShapeError
from qkv.nn.embedding import build_attention_position, build_positional_encoding, is_encoding
from qkv.nn.fast import Dropout
from qkv.nn.feed_forward import Activation, FeedForward
from qkv.nn.interfaces import Model, label_names
from qkv.nn.multi_head import BackendName, MultiHeadAttention, check_terms, head_sizes
from qkv.nn.residual_norm import FFNKind, NormPlacement, ResidualNorm, build_final_norm
from qkv.registry import register
from qkv.types import Float, Tensor

_SIZES: dict[str, dict[str, int]] = {
    "ti": {"dim": 192, "layers": 12, "heads": 3, "ffn_dim": 768},  # Ti and S: Touvron et al. 2021
    "s": {"dim": 384, "layers": 12, "heads": 6, "ffn_dim": 1536},
    "b": {"dim": 768, "layers": 12, "heads": 12, "ffn_dim": 3072},  # B, L and H: table 1 of the paper
    "l": {"dim": 1024, "layers": 24, "heads": 16, "ffn_dim": 4096},
    "h": {"dim": 1280, "layers": 32, "heads": 16, "ffn_dim": 5120},
}
PRESETS = {f"{name}/{patch}": {**size, "patch": patch} for name, size in _SIZES.items() for patch in (14, 16, 32)}
# Strict(False): accept the lists of TOML and JSON.
Stem = Annotated[tuple[Annotated[int, Field(ge=1, le=2**16)], ...], Strict(False), Field(max_length=64)]


class ViTConfig(Config):
    """Sizes and terms of the model; the image size and the number of classes come from the data."""

    classes: Size | None = None  # number of classes; None: no head, the model returns y
    label_names: StringList = ()  # names of the classes, if known
    height: Size = 224  # of training images, in pixels
    width: Size = 224  # of training images, in pixels
    channels: Size = 3  # of the images
    patch: Size = 16  # side of a patch in pixels
    stem: Stem = ()  # output channels of each convolution before the patches
    dim: Size = 768  # width of embeddings and hidden states
    layers: Count = 12  # number of blocks
    heads: Count = 12  # attention heads per layer
    ffn_dim: Size = 3072  # width of the feed-forward networks
    dropout: Rate = 0.0  # of embeddings, residual branches and feed-forward networks
    attention_dropout: Rate | None = None  # of the attention weights; None: same as dropout
    stochastic_depth: Rate = 0.0  # probability of skipping a residual branch: 0 in the first block to this in the last
    activation: Activation = "gelu"  # of the feed-forward networks
    score: ScoreTerm = Term("score", "scaled_dot")  # score between queries and keys
    align: AlignTerm = Term("align", "softmax")  # from scores to attention weights
    position: PositionTerm = Term("position", "learned")  # E_pos, or a position inside self-attention
    attention_position: PositionTerm = Term("position", "none")  # inside self-attention, in addition to E_pos
    backend: BackendName = "auto"  # attention implementation; auto: the fastest that supports the terms
    qkv_bias: bool = True  # whether the projections to queries, keys and values have a bias
    pool: Literal["class", "mean"] = "class"  # y: LN(z)_class, or the mean of LN(z) over the patches
    pooler: bool = False  # y = tanh(W_p LN(z)_class + b_p), the hidden layer of the pre-training head
    layer_norm_eps: PositiveFloat = 1e-12  # epsilon of layer normalization
    norm: NormPlacement = "pre"  # layer normalization before each sub-layer ("pre"), after each sum ("post"), or "none"
    residual: bool = True  # add the input of each sub-layer to its output
    ffn: FFNKind = "position_wise"  # one feed-forward network per block, or "none"

    @property
    def attention_dropout_p(self) -> float:
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def position_in_attention(self) -> Term:
        """The position that acts inside self-attention, if any."""
        return self.position if self.attention_position.name == "none" else self.attention_position

    @property
    def features(self) -> int:
        """Number of channels that patches are cut from."""
        return self.stem[-1] if self.stem else self.channels

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.height // self.patch, self.width // self.patch

    @property
    def sizes(self) -> Sizes:
        """Sizes of an attention head; the keys are the class token and the patches."""
        return head_sizes(self.dim, self.heads, 1 + self.grid[0] * self.grid[1])._replace(grid=self.grid)

    @model_validator(mode="after")
    def _check(self) -> "ViTConfig":
        for name, side in (("height", self.height), ("width", self.width)):
            if name in self.model_fields_set:  # otherwise not yet set by the data
                require(side % self.patch == 0, f"{name} {side} must be a multiple of patch {self.patch}")
        pixels = self.features * self.patch**2
        widest = max(3 * self.dim, self.ffn_dim, self.sizes.max_keys, pixels, self.classes or 1)
        require_matrix_size(self.dim, widest)
        check_terms(self.sizes, score=self.score, align=self.align, position=self.position)
        if self.attention_position.name != "none":
            name = self.attention_position.name
            require(not is_encoding(self.attention_position), f"attention_position {name} acts on embeddings only")
            require(
                self.position.name == "none" or is_encoding(self.position),
                f"position {self.position.name} and attention_position {name} both act inside self-attention",
            )
            check_terms(self.sizes, attention_position=self.attention_position)
        require(len(self.label_names) in (0, self.classes), f"label_names must name all {self.classes} classes or none")
        return self


@register("model", "vit")
class ViT(Model):
    """Vision Transformer."""

    config_class = ViTConfig
    presets: ClassVar = PRESETS
    kind_description = "an image classifier (qkv.ImageClassifier)"
    input_role = "image"
    description = "ViT (Dosovitskiy et al. 2021): a Transformer encoder over image patches"

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        widths = (config.channels, *config.stem)
        self.stem = nn.ModuleList(Convolution(inputs, outputs) for inputs, outputs in pairwise(widths))
        self.patch_embed = PatchEmbedding(config.features, config.patch, config.dim)  # E
        self.class_token = nn.Parameter(torch.empty(1, 1, config.dim).normal_(std=0.02))  # x_class
        # E_pos; None if the position acts inside self-attention (see `Block`)
        self.positions = build_positional_encoding(config.position, config.sizes)
        self.dropout = Dropout(config.dropout)
        skip = [config.stochastic_depth * number / max(1, config.layers - 1) for number in range(config.layers)]
        self.encoder = nn.ModuleList(Block(config, probability) for probability in skip)
        self.norm = build_final_norm(config.dim, config.layer_norm_eps, config.norm)  # LN for pre-norm, else identity
        self.pooler = nn.Linear(config.dim, config.dim) if config.pooler else None  # W_p and b_p
        self.head = None if config.classes is None else nn.Linear(config.dim, config.classes)  # W and b

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return [*self.encoder]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, or LABEL_0, LABEL_1, ... as in transformers if unnamed."""
        return label_names(self.config.label_names, self.config.classes or 0)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes_or_dim"]:
        """Return the logits of the classes, or y without a head."""
        z = self.encode(images)
        y = z[:, 0] if self.config.pool == "class" else z[:, 1:].mean(dim=1)
        if self.pooler is not None:
            y = torch.tanh(self.pooler(y))
        return y if self.head is None else self.head(y)

    def encode(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch tokens dim"]:
        """Return LN(z): the state of the class token, then those of the patches, row by row."""
        if images.ndim != 4 or images.shape[1] != self.config.channels:
            channels = self.config.channels
            raise ShapeError(f"images must be [batch, {channels} channels, height, width], not {list(images.shape)}")
        for convolution in self.stem:
            images = convolution(images)
        patches, grid = self.patch_embed(images)
        z = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1)
        if isinstance(self.positions, Learned):
            z = z + self.interpolate_positions(self.positions.weight, grid)
        elif self.positions is not None:
            z = z + self.positions(z.shape[1])
        z = self.dropout(z)
        for block in self.encoder:
            z = block(z, grid)
        return self.norm(z)

    def interpolate_positions(
        self, positions: Float[Tensor, "trained_tokens dim"], grid: tuple[int, int]
    ) -> Float[Tensor, "tokens dim"]:
        """Interpolate E_pos to a grid of patches of any size."""
        if grid == self.config.grid:
            return positions
        learned = positions[1:].unflatten(0, self.config.grid).movedim(-1, 0)  # dim rows columns
        resized = F.interpolate(learned[None], grid, mode="bicubic", align_corners=False)[0]
        return torch.cat((positions[:1], resized.flatten(1).t()))


class Convolution(nn.Module):
    """gelu(GroupNorm(conv(x))), where conv is a 3 x 3 convolution with a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)
        self.norm = nn.GroupNorm(1, outputs)  # independent of the other images of the batch

    def forward(self, x: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs height width"]:
        return F.gelu(self.norm(self.convolve(x.to(self.convolve.weight.dtype))))


class PatchEmbedding(nn.Module):
    """x E + b_E for each patch x of an image: a convolution whose stride equals its kernel size."""

    def __init__(self, channels: int, patch: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, channels, patch, patch))  # the transpose of E
        self.bias = nn.Parameter(torch.zeros(dim))  # b_E
        nn.init.xavier_uniform_(self.weight.view(dim, -1))

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> tuple[Float[Tensor, "batch patches dim"], tuple[int, int]]:
        """Return the embedded patches row by row, and the numbers of rows and columns."""
        side, height, width = self.weight.shape[-1], *images.shape[2:]
        if height < side or width < side or height % side or width % side:
            raise ShapeError(
                f"images of {height} x {width} pixels cannot be cut into patches of {side} x {side} pixels"
            )
        # b c (row y) (column x) -> b (row column) (c y x). A matrix product keeps full float32 precision on a GPU,
        # where convolutions use TF32.
        patches = images.to(self.weight.dtype).unflatten(3, (-1, side)).unflatten(2, (-1, side))
        pixels = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return F.linear(pixels, self.weight.flatten(1), self.bias), (height // side, width // side)


class Block(nn.Module):
    """z = z + SelfAttention(LN(z)),   z = z + FFN(LN(z))   (pre-norm)."""

    def __init__(self, config: ViTConfig, skip: float) -> None:
        super().__init__()
        # build_attention_position: None if no position acts inside self-attention
        self.attention = MultiHeadAttention(
            config.dim, config.heads, config.attention_dropout_p, bias=config.qkv_bias, backend=config.backend,
            score=config.score.build(config.sizes), align=config.align.build(config.sizes),
            position=build_attention_position(config.position_in_attention, config.sizes),
        )  # fmt: skip
        norm = partial(ResidualNorm, config.dim, config.layer_norm_eps, config.norm, config.residual)
        self.attention_norm = norm()
        self.ffn: FeedForward | None = None
        if config.ffn != "none":
            self.ffn = FeedForward(config.dim, config.ffn_dim, config.dropout, config.activation)
            self.ffn_norm = norm()
        self.dropout = (
            nn.Sequential(Dropout(config.dropout), StochasticDepth(skip)) if skip else Dropout(config.dropout)
        )

    def forward(self, z: Float[Tensor, "batch tokens dim"], grid: tuple[int, int]) -> Float[Tensor, "batch tokens dim"]:
        position = self.attention.attend.position
        if isinstance(position, Quadratic):
            position = position.on_grid(grid[1])
        # before(z): LN(z) with pre-norm, else z.   after(z, y): z + y, or y without residual; then LN with post-norm.
        attended, _ = self.attention(self.attention_norm.before(z), position=position)
        z = self.attention_norm.after(z, self.dropout(attended))
        if self.ffn is None:
            return z
        return self.ffn_norm.after(z, self.dropout(self.ffn(self.ffn_norm.before(z))))


class StochasticDepth(nn.Module):
    """Set x of whole examples to zero with probability p, else x / (1 - p), in training (Huang et al. 2016)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        if not self.training:
            return x
        kept = torch.rand(len(x), 1, 1, device=x.device) >= self.p
        return x * (kept / (1 - self.p)).to(x.dtype)
