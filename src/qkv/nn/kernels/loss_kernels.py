"""Triton kernel of the cross-entropy and its gradient; `fast` launches it."""

# ruff: noqa: N803 (upper-case arguments are compile-time constants, following the Triton convention)

from typing import no_type_check

import torch
import triton
import triton.language as tl

from qkv.types import Float, Int, Tensor

MAX_BLOCK = 4096  # logits that a program holds at a time
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def _cross_entropy(
    logits, gradient, targets, weights, losses, stride, gradient_stride, vocabulary, smoothing,
    BLOCK: tl.constexpr, GRADIENT: tl.constexpr, SMOOTHING: tl.constexpr,
):  # fmt: skip
    """loss = -w ((1 - e) log p(target) + e / V sum_v log p(v)) of one row, and its gradient.

    Logarithms are to base 2: exp2(x log2(e) - c) is one multiply-add and one instruction for exp2.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target, weight = tl.load(targets + row), tl.load(weights + row)
    target_logit = tl.load(logits + target).to(tl.float32)  # before any thread overwrites it
    columns = tl.arange(0, BLOCK)
    largest, total = -float("inf"), 0.0
    sums = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, vocabulary, BLOCK):
        inside = begin + columns < vocabulary
        x = tl.load(logits + begin + columns, mask=inside, other=-float("inf")).to(tl.float32)
        new_largest = tl.maximum(largest, tl.max(x, axis=0) * LOG2_E)
        sums = sums * tl.exp2(largest - new_largest) + tl.exp2(x * LOG2_E - new_largest)
        largest = new_largest
        if SMOOTHING:
            total += tl.sum(tl.where(inside, x, 0.0), axis=0)
    log2_z = largest + tl.log2(tl.sum(sums, axis=0))
    log_z = log2_z / LOG2_E
    log_p = target_logit - log_z
    if SMOOTHING:
        log_p = (1.0 - smoothing) * log_p + smoothing * (total / vocabulary - log_z)
    tl.store(losses + row, -weight * log_p)
    if GRADIENT:
        gradient += row * gradient_stride
        for begin in range(0, gradient_stride, BLOCK):
            column = begin + columns
            x = tl.load(logits + column, mask=column < vocabulary, other=-float("inf")).to(tl.float32)
            p = tl.exp2(x * LOG2_E - log2_z)
            if SMOOTHING:
                p -= tl.where(column < vocabulary, smoothing / vocabulary, 0.0)
            p = tl.where(column == target, p - (1.0 - smoothing), p)
            tl.store(gradient + column, (weight * p).to(gradient.dtype.element_ty), mask=column < gradient_stride)


def cross_entropy_rows(
    logits: Float[Tensor, "tokens padded_vocabulary"],
    gradient: Float[Tensor, "tokens padded_vocabulary"] | None,
    targets: Int[Tensor, "tokens"],
    weights: Float[Tensor, "tokens"],
    label_smoothing: float,
    vocabulary: int,
) -> Float[Tensor, ""]:
    """Return the weighted sum of the cross-entropies, and write its gradient, possibly over the logits.

    Columns from `vocabulary` on are padding: they are ignored, and their gradient is zero.
    """
    losses = torch.empty_like(weights)
    out = logits if gradient is None else gradient
    block = min(MAX_BLOCK, triton.next_power_of_2(logits.shape[1]))
    with torch.cuda.device_of(logits):
        _cross_entropy[(len(logits),)](
            logits, out, targets, weights, losses, logits.stride(0), out.stride(0), vocabulary, label_smoothing,
            BLOCK=block, GRADIENT=gradient is not None, SMOOTHING=label_smoothing > 0,
            num_warps=4,
        )  # fmt: skip
    return losses.sum()
