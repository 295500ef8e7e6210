"""Sparse alignments: like a softmax, but keys that score low get exactly nothing.

Entmax (Peters, Niculae and Martins 2019) is the distribution that maximises p . s + H_a(p), with Tsallis' entropy H_a:

    p_i = [(a - 1) s_i - tau]_+ ^ (1 / (a - 1)),   tau such that the p_i sum to 1.

With a = 2 it is sparsemax (Martins and Astudillo 2016), the point of the simplex nearest to s; as a nears 1 it becomes
softmax. Whatever a is, the gradient is

    ds_i = r_i (g_i - sum_j r_j g_j / sum_j r_j),   r_i = p_i ^ (2 - a) on the support, 0 elsewhere.
"""

import math
from typing import Any, final

import torch

from qkv.attention.align import Align, Scored
from qkv.attention.precision import at_least_float32
from qkv.errors import InputError
from qkv.types import Float, Tensor


@final
class Sparsemax(Align):
    """The distribution nearest to the scores, argmin |p - s|^2 (Martins and Astudillo 2016)."""

    def weigh(self, scored: Scored) -> Float[Tensor, "batch heads query key"]:
        return entmax(scored.scores, 2.0)


@final
class Entmax(Align):
    """Between softmax (alpha near 1) and sparsemax (alpha = 2), or beyond it (Peters, Niculae and Martins 2019)."""

    def __init__(self, alpha: float = 1.5) -> None:
        if not 1.0 < alpha < math.inf:
            raise InputError(f"Entmax takes an alpha above 1, not {alpha} (at 1 it is Softmax)")
        self.alpha = alpha

    def weigh(self, scored: Scored) -> Float[Tensor, "batch heads query key"]:
        return entmax(scored.scores, self.alpha)


def entmax(scores: Float[Tensor, "*rows key"], alpha: float) -> Float[Tensor, "*rows key"]:
    """Entmax over the last dimension: by sorting where alpha is 1.5 or 2, which is exact, and else by bisection."""
    return _Entmax.apply(at_least_float32(scores), alpha).to(scores.dtype)  # type: ignore[no-untyped-call]


class _Entmax(torch.autograd.Function):
    """Entmax with its gradient in closed form, which needs the weights and nothing else."""

    @staticmethod
    def forward(scores: Tensor, alpha: float) -> Tensor:
        # With the highest score at 0, tau lies in [-1, 0): what is below -1 gets nothing, however far below it is. So
        # the clamp changes no weight, and forbidden keys, which come with the lowest finite number, do no harm.
        z = ((scores - scores.amax(dim=-1, keepdim=True)) * (alpha - 1.0)).clamp(min=-1.0)
        weights = (z - _threshold(z, alpha)).clamp(min=0.0) ** (1.0 / (alpha - 1.0))
        return weights / weights.sum(dim=-1, keepdim=True)  # what is left of rounding

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.alpha = inputs[1]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        support = weights > 0
        rate = weights.where(support, 1.0) ** (2.0 - ctx.alpha)
        # Above alpha = 2, r has no bound as weights near 0: it is kept where sums of it are still finite.
        rate = rate.clamp(max=math.sqrt(torch.finfo(weights.dtype).max)).where(support, 0.0)  # r
        mean = (rate * slope).sum(dim=-1, keepdim=True) / rate.sum(dim=-1, keepdim=True)
        return rate * (slope - mean), None


def _threshold(z: Tensor, alpha: float) -> Tensor:
    """tau, for scores z = (alpha - 1) s whose highest is 0."""
    if alpha == 2.0:
        return _sparsemax_threshold(z)
    return _entmax15_threshold(z) if alpha == 1.5 else _threshold_by_bisection(z, alpha)


def _sparsemax_threshold(z: Tensor) -> Tensor:
    """Were the k highest the support, tau would be (their sum - 1) / k; k is the largest that leaves z_k above it."""
    z, ranks = _ranked(z)
    taus = (z.cumsum(dim=-1) - 1.0) / ranks
    return _of_the_support(taus, z)


def _entmax15_threshold(z: Tensor) -> Tensor:
    """Were the k highest the support, sum (z_i - tau)^2 = 1 would give tau = mean - sqrt((1 - k variance) / k)."""
    z, ranks = _ranked(z)
    mean = z.cumsum(dim=-1) / ranks
    scatter = z.square().cumsum(dim=-1) - ranks * mean.square()  # k variance
    taus = mean - ((1.0 - scatter) / ranks).clamp(min=0.0).sqrt()
    return _of_the_support(taus, z)


def _ranked(z: Tensor) -> tuple[Tensor, Tensor]:
    """The scores from the highest down, and their ranks 1, 2, ..."""
    return z.sort(dim=-1, descending=True).values, torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)


def _of_the_support(taus: Tensor, ranked: Tensor) -> Tensor:
    """The tau of the largest support whose lowest score is not below it; the highest alone always is one."""
    support = (taus <= ranked).sum(dim=-1, keepdim=True)
    return taus.gather(-1, support - 1)


def _threshold_by_bisection(z: Tensor, alpha: float) -> Tensor:
    """tau = -u^(alpha - 1), where u is the highest weight, between 1/n and 1: from above, until the sum is 1."""
    highest = torch.ones_like(z[..., :1])
    width = 1.0 - 1.0 / z.shape[-1]
    # Ten more halvings than numbers have bits: the highest of a thousand weights may be no more than a thousandth.
    for _ in range(10 - int(math.log2(torch.finfo(z.dtype).eps))):
        width /= 2
        lower = highest - width
        weights = (z + lower ** (alpha - 1.0)).clamp(min=0.0) ** (1.0 / (alpha - 1.0))
        highest = torch.where(weights.sum(dim=-1, keepdim=True) >= 1.0, lower, highest)
    return -(highest ** (alpha - 1.0))
