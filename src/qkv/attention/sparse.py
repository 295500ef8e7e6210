"""Sparse align functions: like a softmax, but keys with low scores get weight exactly 0.

Entmax (Peters, Niculae and Martins 2019) is the distribution that maximizes p . s + H_a(p), with Tsallis' entropy H_a:

    p_i = [(a - 1) s_i - tau]_+ ^ (1 / (a - 1)),   tau such that the p_i sum to 1.

With a = 2 it is sparsemax (Martins and Astudillo 2016), the point of the simplex nearest to s; as a nears 1 it becomes
softmax. Whatever a is, the gradient is

    ds_i = r_i (g_i - sum_j r_j g_j / sum_j r_j),   r_i = p_i ^ (2 - a) on the support, 0 elsewhere.
"""

import math
from typing import Annotated, Any, final

import torch
from pydantic import Field

from qkv.attention.align import Align, AlignInput
from qkv.attention.precision import at_least_float32
from qkv.attention.score_shape import Weights
from qkv.errors import InputError
from qkv.registry import register
from qkv.types import Float, Tensor


@final
@register("align", "sparsemax")
class Sparsemax(Align):
    """The distribution nearest to the scores, argmin |p - s|^2 (Martins and Astudillo 2016)."""

    def compute_weights(self, inputs: AlignInput) -> Weights:
        return entmax(inputs.scores, 2.0)


@final
@register("align", "entmax")
class Entmax(Align):
    """Between softmax (alpha near 1) and sparsemax (alpha = 2), or beyond it (Peters, Niculae and Martins 2019).

    Args:
        alpha: Above 1; the greater, the fewer keys have a weight above 0.
    """

    def __init__(
        self, alpha: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 1.5
    ) -> None:  # 1: softmax, 2: sparsemax
        if not 1.0 < alpha < math.inf:
            raise InputError(f"alpha must be above 1, not {alpha} (use Softmax for alpha = 1)")
        self.alpha = alpha

    def compute_weights(self, inputs: AlignInput) -> Weights:
        return entmax(inputs.scores, self.alpha)


def entmax(scores: Float[Tensor, "*rows key"], alpha: float) -> Float[Tensor, "*rows key"]:
    """Entmax over the last dimension: exact by sorting for alpha 1.5 and 2, else by bisection."""
    return _Entmax.apply(at_least_float32(scores), alpha).to(scores.dtype)  # type: ignore[no-untyped-call]


class _Entmax(torch.autograd.Function):
    """Entmax with its closed-form gradient, which needs only the weights."""

    @staticmethod
    def forward(scores: Tensor, alpha: float) -> Tensor:
        # With the highest score at 0, tau is in [-1, 0), so scores below -1 get weight 0 and the clamp changes no
        # weight. It keeps masked keys, which have the lowest finite score, from overflowing.
        z = ((scores - scores.amax(dim=-1, keepdim=True)) * (alpha - 1.0)).clamp(min=-1.0)
        weights = (z - _threshold(z, alpha)).clamp(min=0.0) ** (1.0 / (alpha - 1.0))
        return weights / weights.sum(dim=-1, keepdim=True)  # correct rounding errors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.alpha = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        support = weights > 0
        rate = weights.where(support, 1.0) ** (2.0 - ctx.alpha)
        # For alpha > 2, r is unbounded as weights approach 0: clamp it so that its sums stay finite.
        rate = rate.clamp(max=math.sqrt(torch.finfo(weights.dtype).max)).where(support, 0.0)  # r
        mean = (rate * grad).sum(dim=-1, keepdim=True) / rate.sum(dim=-1, keepdim=True)
        return rate * (grad - mean), None


def _threshold(z: Tensor, alpha: float) -> Tensor:
    """tau for scores z = (alpha - 1) s with maximum 0.

    With the k highest scores as support, sum (z_i - tau)^(1 / (alpha - 1)) = 1 has a closed form for alpha 2 and 1.5:

        tau = (sum z_i - 1) / k,   tau = mean - sqrt((1 - k variance) / k)
    """
    if alpha not in (1.5, 2.0):
        return _threshold_by_bisection(z, alpha)
    z = z.sort(dim=-1, descending=True).values
    k = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    if alpha == 2.0:
        tau = (z.cumsum(dim=-1) - 1.0) / k
    else:
        mean = z.cumsum(dim=-1) / k
        scatter = z.square().cumsum(dim=-1) - k * mean.square()  # k variance
        tau = mean - ((1.0 - scatter) / k).clamp(min=0.0).sqrt()
    support = (tau <= z).sum(dim=-1, keepdim=True)  # the largest whose lowest score is not below tau, at least 1
    return tau.gather(-1, support - 1).clamp(min=-1.0)  # not below by rounding, or scores of -1 would get a weight


def _threshold_by_bisection(z: Tensor, alpha: float) -> Tensor:
    """tau = -u^(alpha - 1), where the highest weight u is found by bisection in [1/n, 1] such that the sum is 1."""
    highest = torch.ones_like(z[..., :1])
    width = 1.0 - 1.0 / z.shape[-1]
    # Ten more iterations than mantissa bits: the highest of a thousand weights may be as small as a thousandth.
    for _ in range(10 - int(math.log2(torch.finfo(z.dtype).eps))):
        width /= 2
        lower = highest - width
        weights = (z + lower ** (alpha - 1.0)).clamp(min=0.0) ** (1.0 / (alpha - 1.0))
        highest = torch.where(weights.sum(dim=-1, keepdim=True) >= 1.0, lower, highest)
    return -(highest ** (alpha - 1.0))
