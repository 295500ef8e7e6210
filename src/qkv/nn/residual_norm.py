"""Layer normalization and residual connection of a sub-layer, of which either can be left out."""

from typing import Literal

from torch import nn

from qkv.types import Float, Tensor

NormPlacement = Literal["pre", "post", "none"]  # LN before each sub-layer, after each sum, or nowhere
FFNKind = Literal["position_wise", "none"]  # whether the blocks of a model have feed-forward networks


class ResidualNorm(nn.LayerNorm):
    """The sub-layer f becomes x + f(LN(x)) with norm = "pre", LN(x + f(x)) with "post", and x + f(x) with "none".

    Without the residual connection, "x +" is left out. To be used as `norm.after(x, f(norm.before(x)))`.
    """

    def __init__(self, dim: int, eps: float = 1e-5, norm: NormPlacement = "pre", residual: bool = True) -> None:
        super().__init__(dim, eps, elementwise_affine=norm != "none")
        self.norm, self.residual = norm, residual

    def before(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
        return self(x) if self.norm == "pre" else x

    def after(
        self, x: Float[Tensor, "batch length dim"], y: Float[Tensor, "batch length dim"]
    ) -> Float[Tensor, "batch length dim"]:
        y = x + y if self.residual else y
        return self(y) if self.norm == "post" else y


def build_final_norm(dim: int, eps: float = 1e-5, norm: NormPlacement = "pre") -> nn.Module:
    """Return LN for the output of pre-norm blocks, else the identity: post-norm blocks have normalized outputs."""
    return nn.LayerNorm(dim, eps) if norm == "pre" else nn.Identity()
