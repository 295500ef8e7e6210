"""Layer normalization and residual connection of a sub-layer, of which either can be left out."""

from typing import Literal

from torch import nn

from qkv.types import Float, Tensor

Norm = Literal["pre", "post", "none"]
FFN = Literal["position_wise", "none"]  # the feed-forward networks of a model, or none


class ResidualNorm(nn.LayerNorm):
    """The sub-layer f becomes x + f(LN(x)) with norm = "pre", LN(x + f(x)) with "post", and x + f(x) with "none".

    Without the residual connection, "x +" is left out. To be used as `norm.after(x, f(norm.before(x)))`.
    """

    def __init__(self, dim: int, eps: float = 1e-5, norm: Norm = "pre", residual: bool = True) -> None:
        super().__init__(dim, eps, elementwise_affine=norm != "none")
        self.norm, self.residual = norm, residual

    def before(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
        return self(x) if self.norm == "pre" else x

    def after(
        self, x: Float[Tensor, "batch length dim"], y: Float[Tensor, "batch length dim"]
    ) -> Float[Tensor, "batch length dim"]:
        y = x + y if self.residual else y
        return self(y) if self.norm == "post" else y


def final_norm(dim: int, eps: float = 1e-5, norm: Norm = "pre") -> nn.Module:
    """Return the normalization after the last block of a stack: post-norm blocks have normalized outputs."""
    return nn.LayerNorm(dim, eps) if norm == "pre" else nn.Identity()
