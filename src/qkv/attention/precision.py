"""Half precision is for storing; what would round or overflow in it is computed in float32 at least."""

import torch

from qkv.types import Float, Tensor


def exact(dtype: torch.dtype) -> torch.dtype:
    """The dtype, or float32 in place of a shorter one."""
    return torch.promote_types(dtype, torch.float32)


def at_least_float32(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The tensor, in float32 where its numbers are shorter."""
    return x.to(exact(x.dtype))
