"""Doubly stochastic attention (Xu et al. 2015): penalize positions of an image that are not attended to."""

from qkv.attention.precision import at_least_float32
from qkv.types import Bool, Float, Tensor


def doubly_stochastic_loss(
    weights: Float[Tensor, "batch target positions"], counted: Bool[Tensor, "batch target"]
) -> Float[Tensor, ""]:
    """Return sum_i (1 - sum_t a_ti)^2 over the counted steps t, summed over rows, divided by the number of steps.

    The weights of a step sum to 1 over positions; this loss encourages the weights of a position to sum to 1 over
    steps. It is normalized by the number of counted steps, like the cross-entropy.
    """
    totals = at_least_float32(weights).masked_fill(~counted[..., None], 0.0).sum(dim=1)
    losses = (1.0 - totals).square().sum(dim=-1)
    return (losses * counted.any(dim=1)).sum() / counted.sum().clamp(min=1)
