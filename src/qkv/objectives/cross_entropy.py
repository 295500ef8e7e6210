"""Cross-entropy of the next token, over the tokens that count."""

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from qkv.attention.precision import at_least_float32
from qkv.types import Float, Int, Tensor

CHUNK = 2**20  # logits that are looked at together on the CPU: what is made of them then stays in its cache


def token_cross_entropy(
    logits: Float[Tensor, "batch length vocabulary"], targets: Int[Tensor, "batch length"], ignore: int
) -> Float[Tensor, ""]:
    """-sum log p(target), in nats, over all targets but `ignore`."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=ignore, reduction="sum")


def mean_cross_entropy(
    logits: Float[Tensor, "batch length vocabulary"],
    targets: Int[Tensor, "batch length"],
    ignore: int,
    label_smoothing: float = 0.0,
    *,
    consume: bool = False,
) -> Float[Tensor, ""]:
    """The mean of -(1 - e) log p(target) - e / V sum_v log p(v), in nats, over all targets but `ignore`.

    The gradient, (p - (1 - e) [v = target] - e / V) / n, is made along with it, while what it is made of is at hand;
    with `consume`, on a CPU, in the memory of the logits, which are the largest tensor there is and are lost then.
    """
    found: Tensor = MeanCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, 1), targets.flatten(), ignore, label_smoothing, consume
    )
    return found


class MeanCrossEntropy(torch.autograd.Function):
    """The loss, and its gradient on the way."""

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
        share = (counted / counted.sum().clamp(min=1.0))[:, None]  # of each token in the mean
        known = targets.masked_fill(targets == ignore, 0)  # which may be no number of a token
        rows = max(1, CHUNK // vocabulary) if logits.device.type == "cpu" else max(1, len(targets))
        gradient = None
        if ctx.needs_input_grad[0]:
            gradient = logits.detach() if consume and logits.device.type == "cpu" else torch.empty_like(logits)
        loss = share.new_zeros(())
        for begin in range(0, len(targets), rows):
            part = slice(begin, begin + rows)
            target, weight = known[part, None], share[part]
            log_p = at_least_float32(logits[part]).log_softmax(dim=-1)
            smooth = label_smoothing * log_p.mean(dim=-1, keepdim=True) if label_smoothing else 0.0
            loss = loss - ((1 - label_smoothing) * log_p.gather(1, target) + smooth).mul(weight).sum()
            if gradient is not None:
                slope = log_p.exp_().sub_(label_smoothing / vocabulary) if label_smoothing else log_p.exp_()
                slope.scatter_add_(1, target, slope.new_full((), label_smoothing - 1).expand(target.shape))
                torch.mul(slope, weight, out=gradient[part])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Float[Tensor, ""]) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        if not slope.is_cuda and slope.item() == 1.0:  # the loss itself is what is made smaller
            return gradient, None, None, None, None
        return gradient * slope.to(gradient.dtype), None, None, None, None
