"""What it costs not to look at all of a picture (Xu et al. 2015, "doubly stochastic attention")."""

from qkv.attention.precision import at_least_float32
from qkv.types import Bool, Float, Tensor


def doubly_stochastic_loss(
    weights: Float[Tensor, "batch target places"], counted: Bool[Tensor, "batch target"]
) -> Float[Tensor, ""]:
    """sum_i (1 - sum_t a_ti)^2 over the counted steps t, summed over rows that have any, for each step that counts.

    The weights of a step sum to 1 over the places; this asks those of a place to sum to 1 over the steps. It is summed
    over what the cross-entropy is a mean of, so that both are a picture's own, divided by the same number.
    """
    read = at_least_float32(weights).masked_fill(~counted[..., None], 0.0).sum(dim=1)
    each = (1.0 - read).square().sum(dim=-1)
    return (each * counted.any(dim=1)).sum() / counted.sum().clamp(min=1)
