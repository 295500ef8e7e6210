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

    A draw at step t may change all that is said from there on, and nothing before. It is rewarded with

        R_t = sum_{u >= t} discount^{u-t} log p(y_u)

    (REINFORCE, Williams 1992; Xu et al. 2015), of which the baseline expects as many as there are. None where no layer
    of the model learns from rewards: then nothing is computed.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, Hard) and layer.estimator == "reinforce"]
    if not layers or not model.training or not torch.is_grad_enabled():
        return None
    counted = targets != ignore
    said = at_least_float32(logits.detach()).flatten(0, 1)
    log_p = -F.cross_entropy(said, targets.flatten(), ignore_index=ignore, reduction="none").view(targets.shape)
    share = targets.shape[0] / counted.sum().clamp(min=1)  # `Hard.loss` is a mean over rows, and a sum over steps
    losses = []
    for layer in layers:
        rewards, steps = (_from_here_on(each, layer.discount) for each in (log_p, counted.to(log_p.dtype)))
        losses.append(layer.loss(rewards, counted, steps).loss * share)
    return torch.stack(losses).sum()


def _from_here_on(each: Float[Tensor, "batch target"], discount: float) -> Float[Tensor, "batch target"]:
    """sum_{u >= t} discount^{u-t} x_u, for each t."""
    time = torch.arange(each.shape[1], device=each.device)
    later = (time[:, None] - time).clamp(min=0).to(each.dtype)  # u - t
    return (each[:, :, None] * (discount**later).tril()).sum(dim=1)  # not a product of matrices: autocast would round
