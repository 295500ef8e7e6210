"""Upcasting: values that would round or overflow in half precision are computed at least in float32."""

import torch

from qkv.types import Float, Tensor


def upcast_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype, or float32 if it has less precision."""
    return torch.promote_types(dtype, torch.float32)


def at_least_float32(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Cast the tensor to float32 if its dtype has less precision."""
    return x.to(upcast_dtype(x.dtype))
