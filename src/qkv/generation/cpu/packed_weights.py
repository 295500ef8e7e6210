"""Packed weights for models that are decoded by their own `step`: recurrent, convolutional, captioning models."""

from collections.abc import Callable
from ctypes import byref
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from qkv.generation.cpu.library import LinearC, library
from qkv.generation.cpu.packed_stack import CODES, pack, top_k
from qkv.generation.decoder_stack import LinearWeights, WeightType
from qkv.types import Float, Tensor

MIN_ELEMENTS = 2**14  # smaller matrices are left to PyTorch


Key = tuple[int, tuple[int, ...], tuple[int, ...]]  # address, shape and strides of a matrix


class PackedWeights(TorchFunctionMode):
    """Inside a `with` block, products with a model's matrices run on bfloat16 or int8 copies of them.

    A matrix, or a part of one, is packed when it is first used. Everything else, activations included, stays in
    float32. The best tokens of a vocabulary are also selected by the kernels.
    """

    def __init__(self, model: nn.Module, dtype: WeightType) -> None:
        super().__init__()
        library()  # raises `Unsupported` if there are no kernels
        self.dtype = dtype
        self._storages = {
            weight.untyped_storage().data_ptr() for weight in model.parameters() if weight.dtype == torch.float32
        }
        self._packed: dict[Key, tuple[LinearC, tuple[Tensor | None, ...]]] = {}  # with the memory it points to

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not torch.is_grad_enabled():
            if func is F.linear and not kwargs:
                x, weight, bias = (*args, None)[:3]
                if self._applies(x, weight):
                    return self._linear(x, weight, bias)
            elif func is torch.addmm and not kwargs:
                residual, x, transposed = args
                if self._applies(x, transposed.t()):
                    return self._linear(x, transposed.t(), residual)
            elif func is Tensor.topk and not kwargs and len(args) == 2 and _is_vocabulary(args[0]):
                return top_k(*args)
        return func(*args, **(kwargs or {}))

    def _applies(self, x: Tensor, weight: Tensor) -> bool:
        return (
            x.dtype == weight.dtype == torch.float32
            and weight.ndim == 2
            and weight.numel() >= MIN_ELEMENTS
            and x.numel() > 0
            and weight.untyped_storage().data_ptr() in self._storages
        )

    def _linear(
        self, x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"], base: Tensor | None
    ) -> Float[Tensor, "*batch outputs"]:
        """Return x W^T + base; `base` is a bias or one row per row of x."""
        linear, _ = self._get(weight)
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out = torch.empty(len(rows), weight.shape[0])
        if base is not None:
            base = base.detach().expand_as(out).contiguous()
        address = None if base is None else base.data_ptr()
        if library().qkv_linear(byref(linear), rows.data_ptr(), len(rows), address, out.data_ptr()):
            raise MemoryError("not enough memory for a product")
        return out.view(*x.shape[:-1], weight.shape[0])

    def _get(self, weight: Float[Tensor, "outputs inputs"]) -> tuple[LinearC, tuple[Tensor | None, ...]]:
        key = (weight.data_ptr(), tuple(weight.shape), weight.stride())
        if key not in self._packed:
            packed, scale = pack(LinearWeights(weight.detach(), None), self.dtype)
            linear = LinearC(
                CODES[self.dtype], *weight.shape, packed.data_ptr(), None if scale is None else scale.data_ptr(), None
            )
            self._packed[key] = linear, (packed, scale)
        return self._packed[key]


def _is_vocabulary(values: Tensor) -> bool:
    """Return whether a tensor has one row of scores per hypothesis, long enough to be worth a kernel."""
    return values.ndim == 2 and values.shape[1] >= 1024 and values.dtype == torch.float32 and values.is_contiguous()
