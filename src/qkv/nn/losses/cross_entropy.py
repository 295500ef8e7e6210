"""Cross-entropy of the next token."""

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from qkv.attention.precision import at_least_float32
from qkv.types import Float, Int, Tensor

CHUNK = 2**20  # logits per chunk on the CPU, so that intermediate results stay in cache


def token_cross_entropy(
    logits: Float[Tensor, "batch length vocabulary"], targets: Int[Tensor, "batch length"], ignore: int
) -> Float[Tensor, ""]:
    """Return -sum log p(target), in nats, over all targets except `ignore`."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=ignore, reduction="sum")


def mean_cross_entropy(
    logits: Float[Tensor, "batch length vocabulary"],
    targets: Int[Tensor, "batch length"],
    ignore: int,
    label_smoothing: float = 0.0,
    *,
    consume: bool = False,
) -> Float[Tensor, ""]:
    """Return the mean of -(1 - e) log p(target) - e / V sum_v log p(v), in nats, over all targets except `ignore`.

    The gradient, (p - (1 - e) [v = target] - e / V) / n, is computed in the forward pass; with `consume`, on a CPU, it
    overwrites the logits, usually the largest tensor of a step.
    """
    loss: Tensor = MeanCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, 1), targets.flatten(), ignore, label_smoothing, consume
    )
    return loss


class MeanCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy that computes its gradient in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Float[Tensor, "tokens vocabulary"],
        targets: Int[Tensor, "tokens"],
        ignore: int,
        label_smoothing: float,
        consume: bool,
    ) -> Float[Tensor, ""]:
        vocabulary = logits.shape[1]
        counted = (targets != ignore).to(torch.promote_types(logits.dtype, torch.float32))
        weights = (counted / counted.sum().clamp(min=1.0))[:, None]  # weight of each token in the mean
        valid_targets = targets.masked_fill(targets == ignore, 0)  # `ignore` need not be a token
        rows = max(1, CHUNK // vocabulary) if logits.device.type == "cpu" else max(1, len(targets))
        gradient = None
        if ctx.needs_input_grad[0]:
            gradient = logits.detach() if consume and logits.device.type == "cpu" else torch.empty_like(logits)
        loss = weights.new_zeros(())
        for begin in range(0, len(targets), rows):
            part = slice(begin, begin + rows)
            target, weight = valid_targets[part, None], weights[part]
            log_p = at_least_float32(logits[part]).log_softmax(dim=-1)
            smooth = label_smoothing * log_p.mean(dim=-1, keepdim=True) if label_smoothing else 0.0
            loss = loss - ((1 - label_smoothing) * log_p.gather(1, target) + smooth).mul(weight).sum()
            if gradient is not None:
                grad = log_p.exp_().sub_(label_smoothing / vocabulary) if label_smoothing else log_p.exp_()
                grad.scatter_add_(1, target, grad.new_full((), label_smoothing - 1).expand(target.shape))
                torch.mul(grad, weight, out=gradient[part])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Float[Tensor, ""]) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        if not grad_output.is_cuda and grad_output.item() == 1.0:  # backward() on the loss itself
            return gradient, None, None, None, None
        return gradient * grad_output.to(gradient.dtype), None, None, None, None
