"""What attention itself has to learn, beside what it reads: layers that draw are rewarded for what they drew."""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Hard
from qkv.attention.precision import at_least_float32
from qkv.types import Float, Int, Tensor


def alignment_loss(
    model: nn.Module,
    logits: Float[Tensor, "batch target vocabulary"],
    targets: Int[Tensor, "batch target"],
    ignore: int,
) -> Float[Tensor, ""] | None:
    """What the draws of hard attention since the last call have to learn, a mean over the targets but `ignore`.

    A draw at step t may change all that is said from there on, and nothing before: it is rewarded with the log p(y_u)
    of all u >= t (REINFORCE, Williams 1992; Xu et al. 2015), of which the baseline expects as many as there are. None
    where no layer of the model learns from rewards: then nothing is computed.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, Hard) and layer.estimator == "reinforce"]
    if not layers or not model.training or not torch.is_grad_enabled():
        return None
    counted = targets != ignore
    log_p = -F.cross_entropy(at_least_float32(logits.detach()).flatten(0, 1), targets.flatten(), reduction="none")
    rewards = _from_here_on(log_p.view(targets.shape).masked_fill(~counted, 0.0))
    steps = _from_here_on(counted.to(rewards.dtype))
    share = targets.shape[0] / counted.sum().clamp(min=1)  # `Hard.loss` is a mean over rows, and a sum over steps
    return torch.stack([layer.loss(rewards, counted, steps).loss * share for layer in layers]).sum()


def _from_here_on(each: Float[Tensor, "batch target"]) -> Float[Tensor, "batch target"]:
    """sum_{u >= t} x_u, for each t."""
    return each.flip(1).cumsum(1).flip(1)
