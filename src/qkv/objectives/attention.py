"""What attention itself has to learn, beside what it reads: layers that draw are rewarded for what they drew."""

import torch
from torch import nn
from torch.nn import functional as F

from qkv.attention import Hard
from qkv.types import Float, Int, Tensor


def alignment_loss(
    model: nn.Module,
    logits: Float[Tensor, "batch target vocabulary"],
    targets: Int[Tensor, "batch target"],
    ignore: int,
) -> Float[Tensor, ""] | None:
    """What the draws of hard attention since the last call have to learn, a mean over the targets but `ignore`.

    A draw at step t is rewarded with log p(y_t) (REINFORCE, Williams 1992; Xu et al. 2015). None where no layer of the
    model learns from rewards: then nothing is computed.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, Hard) and layer.estimator == "reinforce"]
    if not layers or not model.training or not torch.is_grad_enabled():
        return None
    counted = targets != ignore
    log_p = -F.cross_entropy(logits.detach().flatten(0, 1).float(), targets.flatten(), reduction="none")
    rewards = log_p.view(targets.shape)
    share = targets.shape[0] / counted.sum().clamp(min=1)  # `Hard.loss` is a mean over rows, and a sum over steps
    return torch.stack([layer.loss(rewards, counted).loss * share for layer in layers]).sum()
