"""EfficientNet-lite (Tan and Le 2019), a convolutional network for images, as a backbone with pretrained weights.

    x = relu6(norm(C_stem x))                                3 x 3, stride 2
    MBConv:  h = relu6(norm(C_expand x))                     1 x 1, `expansion` times as many channels
             h = relu6(norm(C_depthwise h))                  k x k, a filter per channel
             y = norm(C_project h)  (+ x if sizes match)     1 x 1
    features = relu6(norm(C_head x))                         1 x 1, the grid of features
    logits = F mean_i features_i

The lite variants have no squeeze-and-excitation, ReLU6 instead of swish, and a stem and head of constant width. Inputs
are pixels scaled to (x - 127) / 128. Convolutions are padded as in TensorFlow: with one more row and column at the
bottom and right where the padding is odd.
"""

import math
from typing import ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from qkv.types import Float, Shaped, Tensor

STEM, HEAD, CLASSES = 32, 1280, 1000  # channels of the stem and of the head, classes of ImageNet


class Stage(NamedTuple):
    """Consecutive blocks with the same number of output channels; the first has the stride."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


CONV_NORMS = (  # convolutions and the normalizations after them
    ("conv_stem", "bn0"),
    ("expand_conv", "bn0"),
    ("depthwise_conv", "bn1"),
    ("project_conv", "bn2"),
    ("conv_head", "bn1"),
)


class SamePadding(nn.Conv2d):
    """Convolution without bias whose output has ceil(size / stride) rows and columns, as "SAME" in TensorFlow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs rows columns"]:
        padding: list[int] = []  # left, right, top, bottom
        for size in (x.shape[3], x.shape[2]):
            kernel, stride = self.kernel_size[0], self.stride[0]
            total = max(0, (math.ceil(size / stride) - 1) * stride + kernel - size)
            padding += [total // 2, total - total // 2]
        return super().forward(F.pad(x, padding) if any(padding) else x)


class MBConv(nn.Module):
    """Inverted residual block (Sandler et al. 2018)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand_conv = SamePadding(inputs, hidden, 1) if expansion > 1 else None
        self.bn0 = _norm(hidden) if expansion > 1 else None
        self.depthwise_conv = SamePadding(hidden, hidden, kernel, stride, groups=hidden)
        self.bn1 = _norm(hidden)
        self.project_conv = SamePadding(hidden, outputs, 1)
        self.bn2 = _norm(outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs rows columns"]:
        h = x
        if self.expand_conv is not None and self.bn0 is not None:
            h = F.relu6(self.bn0(self.expand_conv(h)))
        h = F.relu6(self.bn1(self.depthwise_conv(h)))
        y = self.bn2(self.project_conv(h))
        return x + y if self.residual else y


class EfficientNetLite(nn.Module):
    """EfficientNet-lite with width and depth coefficients; the defaults are those of lite0."""

    stride: ClassVar[int] = 32  # side of one position of the grid in pixels
    dim: ClassVar[int] = HEAD

    def __init__(self, width: float = 1.0, depth: float = 1.0) -> None:
        super().__init__()
        self.conv_stem, self.bn0 = SamePadding(3, STEM, 3, 2), _norm(STEM)
        self.blocks = nn.ModuleList()
        inputs = STEM
        for index, stage in enumerate(STAGES):
            outputs = round_channels(stage.channels * width)
            fixed = index in (0, len(STAGES) - 1)  # the first and the last stage are not repeated more often
            for repeat in range(stage.repeats if fixed else math.ceil(depth * stage.repeats)):
                stride = 1 if repeat else stage.stride
                self.blocks.append(MBConv(inputs, outputs, stage.kernel, stride, stage.expansion))
                inputs = outputs
        self.conv_head, self.bn1 = SamePadding(inputs, HEAD, 1), _norm(HEAD)
        self.fc = nn.Linear(HEAD, CLASSES)  # F

    def features(self, x: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim rows columns"]:
        """Return the features of each position, before pooling."""
        x = F.relu6(self.bn0(self.conv_stem(x)))
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.bn1(self.conv_head(x)))

    def fold_batch_norm(self) -> "EfficientNetLite":
        """Fold each normalization into the convolution before it: the same function in eval mode, in less time."""
        for module in self.modules():
            for conv_name, norm_name in CONV_NORMS:
                conv, norm = getattr(module, conv_name, None), getattr(module, norm_name, None)
                if isinstance(conv, SamePadding) and isinstance(norm, nn.BatchNorm2d):
                    assert norm.running_mean is not None
                    assert norm.running_var is not None
                    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
                    conv.weight = nn.Parameter((conv.weight * scale[:, None, None, None]).detach())
                    conv.bias = nn.Parameter((norm.bias - norm.running_mean * scale).detach())
                    setattr(module, norm_name, nn.Identity())
        return self

    def forward(self, x: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        """Return the logits of the ImageNet classes."""
        return self.fc(self.features(x).mean(dim=(2, 3)))

    @staticmethod
    def scale(pixels: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Scale bytes as in pretraining."""
        return (pixels.to(torch.get_default_dtype()) - 127) / 128


def round_channels(channels: float) -> int:
    """Round to a multiple of 8, but by no more than 10 % down."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
