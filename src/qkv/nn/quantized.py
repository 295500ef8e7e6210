"""Linear layers and embeddings with int8 weights, for decoding and evaluation.

    W ~ q * scale,   q in -127 ... 127,   scale_i = max_j |W_ij| / 127

The scale of each row is the one of an output, or of a token. They compute in the type of their input, from a part of
the weights at a time, so that no floating-point copy of a whole matrix is made. They cannot be trained.
"""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.nn.embedding import ScaledEmbedding
from qkv.types import Float, Int, Tensor

CHUNK = 2**21  # weights converted to floating point at a time
LAYERS = ("qkv_proj", "out_proj", "up_proj", "down_proj", "readout", "embed", "tokens")  # names of quantized layers


def quantize(weight: Float[Tensor, "outputs inputs"]) -> tuple[Int[Tensor, "outputs inputs"], Float[Tensor, "outputs"]]:
    """Quantize to int8 with one scale per output: W ~ q * scale."""
    if weight.is_meta:  # arithmetic on meta tensors would import torch._dynamo
        return weight.new_empty(weight.shape, dtype=torch.int8), weight.new_empty(len(weight), dtype=torch.float32)
    scale = weight.float().abs().amax(dim=1).clamp(min=1e-30) / 127
    return (weight.float() / scale[:, None]).round_().clamp_(-127, 127).char(), scale


class QuantizedLinear(nn.Module):
    """y = scale * (q x) + b."""

    def __init__(
        self,
        weight: Int[Tensor, "outputs inputs"],
        scale: Float[Tensor, "outputs"],
        bias: Float[Tensor, "outputs"] | None = None,
    ) -> None:
        super().__init__()
        self.weight, self.weight_scale = _frozen(weight), _frozen(scale)
        self.bias = None if bias is None else _frozen(bias)

    def forward(self, x: Float[Tensor, "*batch inputs"], rows: slice = slice(None)) -> Float[Tensor, "*batch outputs"]:
        """Return the given outputs, by default all."""
        parts = self.weight[rows].split(max(1, CHUNK // self.weight.shape[1]))
        outputs = [F.linear(x, part.to(x.dtype)) for part in parts]
        y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        y = y * self.weight_scale[rows].to(y.dtype)
        return y if self.bias is None else y + self.bias[rows].to(y.dtype)


class QuantizedEmbedding(nn.Module):
    """factor * scale[token] * q[token]."""

    def __init__(self, weight: Int[Tensor, "tokens dim"], scale: Float[Tensor, "tokens"], factor: float = 1.0) -> None:
        super().__init__()
        self.weight, self.weight_scale = _frozen(weight), _frozen(scale)
        self.scale = factor  # as in `ScaledEmbedding`

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        scale = self.weight_scale[tokens]
        return self.weight[tokens].to(scale.dtype) * (scale * self.scale)[..., None]


QuantizedLayer = QuantizedLinear | QuantizedEmbedding


def quantize_layers(model: nn.Module) -> None:
    """Replace the linear layers and token embeddings of a model by quantized ones; tied weights stay tied."""
    quantized: dict[Tensor, tuple[nn.Parameter, nn.Parameter]] = {}  # by the weight
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if name not in LAYERS or not isinstance(layer, nn.Linear | nn.Embedding):
                continue
            if layer.weight not in quantized:
                weight, scale = quantize(layer.weight.detach())
                quantized[layer.weight] = _frozen(weight), _frozen(scale)
            weight, scale = quantized[layer.weight]
            if isinstance(layer, nn.Linear):
                setattr(parent, name, QuantizedLinear(weight, scale, layer.bias))
            else:
                factor = layer.scale if isinstance(layer, ScaledEmbedding) else 1.0
                setattr(parent, name, QuantizedEmbedding(weight, scale, factor))
    model.requires_grad_(False)


def quantized_layers(model: nn.Module) -> dict[str, QuantizedLayer]:
    """Return the quantized layers of a model by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, QuantizedLayer)}


def is_quantized(model: nn.Module) -> bool:
    """Return whether a model has quantized layers."""
    return any(isinstance(layer, QuantizedLayer) for layer in model.modules())


def _frozen(tensor: Tensor) -> nn.Parameter:
    """Return a parameter without gradient; a parameter is returned itself, so that tied ones stay tied.

    Buffers would do, but moving a model to another device gives each module its own copy of a tied buffer.
    """
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)
