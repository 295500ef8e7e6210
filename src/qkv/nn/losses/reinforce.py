"""REINFORCE loss of hard attention layers, which sample what they attend to."""

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
    """Return the REINFORCE loss of the samples since the last call, averaged over all targets except `ignore`.

    A sample at step t affects the outputs from t on, so its reward is

        R_t = sum_{u >= t} discount^{u-t} log p(y_u)

    (Williams 1992; Xu et al. 2015), minus a baseline per remaining step. None if the model has no such layer or is not
    being trained.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, Hard) and layer.estimator == "reinforce"]
    if not layers or not model.training or not torch.is_grad_enabled():
        return None
    counted = targets != ignore
    flat_logits = at_least_float32(logits.detach()).flatten(0, 1)
    log_p = -F.cross_entropy(flat_logits, targets.flatten(), ignore_index=ignore, reduction="none").view(targets.shape)
    scale = targets.shape[0] / counted.sum().clamp(min=1)  # `Hard.loss` is a mean over rows, and a sum over steps
    losses = []
    for layer in layers:
        rewards, steps = (_discounted_sum(values, layer.discount) for values in (log_p, counted.to(log_p.dtype)))
        losses.append(layer.loss(rewards, counted, steps).loss * scale)
    return torch.stack(losses).sum()


def _discounted_sum(values: Float[Tensor, "batch target"], discount: float) -> Float[Tensor, "batch target"]:
    """sum_{u >= t} discount^{u-t} x_u, for each t."""
    time = torch.arange(values.shape[1], device=values.device)
    later = (time[:, None] - time).clamp(min=0).to(values.dtype)  # u - t
    return (values[:, :, None] * (discount**later).tril()).sum(dim=1)  # not a matmul, which autocast would round
