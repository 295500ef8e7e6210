"""Tensor types with shapes: `Float[Tensor, "batch heads query dim"]`."""

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

__all__ = ["Bool", "Float", "Int", "Shaped", "Tensor"]
