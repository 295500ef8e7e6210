"""Weights of a decoder on a GPU, in float32, bfloat16 or int8, with the norms folded into the linear layers.

Sub-layer i reads the residual stream through norm i:

    pre-norm    norms of the sub-layers, then the final norm for the output layer
    post-norm   no norm for the first sub-layer, then the norm of the previous one, also for the output layer
"""

from dataclasses import dataclass
from typing import Literal

import torch

from qkv.errors import Unsupported
from qkv.generation.decoder_stack import LinearWeights, NormWeights, Stack, WeightType
from qkv.nn.quantized import quantize
from qkv.types import Float, Int, Tensor

STORED = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


@dataclass(frozen=True)
class Norm:
    """Layer normalization."""

    gain: Float[Tensor, "dim"]
    shift: Float[Tensor, "dim"]


@dataclass(frozen=True)
class Linear:
    """Weights of a linear layer with the norm of its input folded in, as in `kernels`."""

    weight: Float[Tensor, "outputs inputs"] | Int[Tensor, "outputs inputs"]
    scale: Float[Tensor, "outputs"] | None
    own_bias: Float[Tensor, "outputs"] | None  # in the type of products
    bias: Float[Tensor, "outputs"] | None  # W s + b
    column: Float[Tensor, "outputs"] | None  # W g; None without norm
    norm: Norm | None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]


@dataclass(frozen=True)
class SubLayer:
    """Attention or feed-forward network: its first and its last linear layer."""

    kind: Literal["self", "cross", "ffn"]
    layer: int
    first: Linear
    last: Linear
    next_norm: Norm | None  # of the reader of its output
    scale: float = 1.0
    key_value: Linear | None = None


class GPUWeights:
    """The weights of a decoder; any number of stacks can share them."""

    def __init__(self, stack: Stack, dtype: WeightType, device: str | torch.device = "cuda") -> None:
        _check(stack)
        self.stack, self.dtype, self.device = stack, dtype, torch.device(device)
        self.compute = torch.float32 if dtype == "float32" else torch.bfloat16
        self._weights: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._norms: dict[int, Norm] = {}
        self.sub_layers, self.readout = self._build()
        self.embedding, self.embedding_scale = self._stored(stack.embed)
        self.position_table = None if stack.position is None else self._floats(stack.position)

    @property
    def linears(self) -> list[Linear]:
        """The linear layers of a step."""
        return [linear for sub in self.sub_layers for linear in (sub.first, sub.last)] + [self.readout]

    def _build(self) -> tuple[list[SubLayer], Linear]:
        """Return all sub-layers and the output layer, with the norms of their inputs."""
        stack = self.stack
        own: list[NormWeights] = []
        for layer in stack.layers:
            own += [layer.attention_norm, *([] if layer.cross is None else [layer.cross.norm]), layer.ffn_norm]
        norms = iter([*own, stack.final_norm] if stack.pre_norm else [None, *own])
        norm, built = self._norm(next(norms)), list[SubLayer]()
        for index, layer in enumerate(stack.layers):
            following = self._norm(next(norms))
            first, last = self._linear(layer.qkv, norm), self._linear(layer.out)
            built.append(SubLayer("self", index, first, last, following, layer.scale))
            if (cross := layer.cross) is not None:
                norm, following = following, self._norm(next(norms))
                first, last, key_value = (
                    self._linear(cross.query, norm),
                    self._linear(cross.out),
                    self._linear(cross.key_value),
                )
                built.append(SubLayer("cross", index, first, last, following, cross.scale, key_value))
            norm, following = following, self._norm(next(norms))
            built.append(SubLayer("ffn", index, self._linear(layer.up, norm), self._linear(layer.down), following))
            norm = following
        assert stack.readout is not None
        return built, self._linear(stack.readout, norm)

    def _linear(self, weights: LinearWeights, norm: Norm | None = None) -> Linear:
        weight, scale = self._stored(weights)
        bias = None if weights.bias is None else self._floats(weights.bias)
        own_bias = None if bias is None else bias.to(self.compute)
        column = None
        if norm is not None:
            column, shifted = (_times(weight, scale, vector) for vector in (norm.gain, norm.shift))
            bias = shifted if bias is None else shifted + bias
        return Linear(weight, scale, own_bias, bias, column, norm)

    def _stored(self, weights: LinearWeights) -> tuple[Tensor, Tensor | None]:
        """Return weights in the type of the stack and their scale; tied weights are stored once."""
        key = weights.weight.data_ptr()
        if key not in self._weights:
            weight, scale = weights.weight.to(self.device), weights.scale
            if self.dtype == "int8":
                if scale is None:
                    weight, scale = quantize(weight)
                scale = self._floats(scale)
            elif scale is not None:
                weight, scale = weight.float() * scale.to(self.device)[:, None], None
            self._weights[key] = weight.to(STORED[self.dtype]).contiguous(), scale
        return self._weights[key]

    def _norm(self, norm: NormWeights | None) -> Norm | None:
        if norm is None:
            return None
        assert norm.bias is not None  # RMS norms are in gated stacks only
        key = norm.weight.data_ptr()
        if key not in self._norms:
            self._norms[key] = Norm(self._floats(norm.weight), self._floats(norm.bias))
        return self._norms[key]

    def _floats(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, torch.float32).contiguous()


def _check(stack: Stack) -> None:
    """Raise `Unsupported` if the kernels do not support the stack."""
    head_dim = stack.head_dim
    if head_dim & (head_dim - 1) or not 8 <= head_dim <= 256:
        raise Unsupported("GPU decoding", f"heads of {head_dim} features: only powers of two from 8 to 256")
    if stack.rotation is not None or stack.gated:
        raise Unsupported("GPU decoding", "rotary positions and gated feed-forward networks")
    if stack.readout is None:
        raise Unsupported("GPU decoding", "a stack without output layer")
    if not stack.pre_norm and stack.final_norm is not None:
        raise Unsupported("GPU decoding", "post-norm with a final norm")


def _times(weight: Tensor, scale: Tensor | None, vector: Float[Tensor, "inputs"]) -> Float[Tensor, "outputs"]:
    """W x in float32."""
    product = torch.mv(weight.float(), vector)
    return product if scale is None else product * scale
